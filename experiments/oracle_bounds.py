"""What a schedule that knows the future could have done with an experiment's arrivals: ``python -m simulator oracle`` for each
rate, on the first seed, beside the policies with their default parameters; no GPU."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from experiments.config import Experiment, ExperimentError
from experiments.predict import arrivals, limited_table, write_trace
from workload.frozen import FrozenModel

KEPT = "oracle.json"


class OracleRow(FrozenModel):
    """What a policy, or a schedule at the attainment of one, reaches; names as in the simulator's answer."""

    rate_rps: float
    policy: str
    requests: int
    misses: int
    slo_attainment: float
    fp16_token_share: float
    fp16_completion_share: float
    found_by: str | None = None
    seconds: dict[str, float] | None = None


class Bounds(FrozenModel):
    """All of an experiment."""

    table: str
    seed: int
    rounds: int
    rows: tuple[OracleRow, ...]


def bounds(
    experiment: Experiment, trace: Path, table: Path, at: Sequence[str], rounds: int, say: Callable[[str], None]
) -> Bounds:
    """Search schedules for the experiment's rates, on its first seed.

    Raises:
        ExperimentError: for more than one replica, and when the simulator refuses, with its message.
    """
    if experiment.replicas != 1:
        raise ExperimentError(f"replicas: a schedule is for one replica, the experiment has {experiment.replicas}")
    seed = experiment.load.seeds[0]
    rows: list[OracleRow] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        section, replayed, found = folder / "controller.yaml", folder / "trace.csv", folder / "oracle.json"
        limited = limited_table(table, experiment, folder)
        section.write_text(yaml.safe_dump({"slo": experiment.slo.model_dump()}))
        for rate in experiment.load.rates_rps:
            write_trace(replayed, arrivals(experiment, trace, rate, seed))
            files = {"--trace": replayed, "--config": section, "--table": limited, "--json": found}
            command = [sys.executable, "-m", "simulator", "oracle", "--seed", str(seed), "--rounds", str(rounds)]
            for option, path in files.items():
                command += [option, str(path)]
            for policy in dict.fromkeys(run.policy["name"] for run in experiment.runs if run.policy):
                command += ["--policy", policy]
            for target in at:
                command += ["--at", target]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ExperimentError(f"oracle at {rate:g} requests/s: {done.stderr.strip()[-500:]}")
            answer = json.loads(found.read_text())
            rows += [_row(answer, rate, each) for each in (*answer["policies"], *answer["rules"], *answer["schedules"])]
            say(f"{rate:g} requests/s\n{done.stdout.strip()}")
    return Bounds(table=table.name, seed=seed, rounds=rounds, rows=tuple(rows))


def read(folder: Path) -> Bounds:
    """Read what was kept.

    Raises:
        ExperimentError: when it cannot be read.
    """
    try:
        return Bounds.model_validate_json((folder / KEPT).read_text())
    except (OSError, ValidationError) as error:
        raise ExperimentError(f"{folder / KEPT}: {error}; remove it, and search again") from error


def joined(before: Bounds, new: Bounds) -> Bounds:
    """Return the new rows, and those of other rates if they were sought in the same way."""
    if (before.table, before.seed, before.rounds) != (new.table, new.seed, new.rounds):
        return new
    rates = {row.rate_rps for row in new.rows}
    rows = [*(row for row in before.rows if row.rate_rps not in rates), *new.rows]
    return new.model_copy(update={"rows": tuple(sorted(rows, key=lambda row: row.rate_rps))})


def table(found: Bounds) -> str:
    """A Markdown table: within the SLO / tokens in FP16, percent, by policy and rate."""
    rates = list(dict.fromkeys(row.rate_rps for row in found.rows))
    cells = {
        (row.policy, row.rate_rps): f"{100 * row.slo_attainment:.1f} / {100 * row.fp16_token_share:.1f}"
        for row in found.rows
    }
    lines = [
        "| within the SLO / tokens in FP16, % | " + " | ".join(f"{rate:g} requests/s" for rate in rates) + " |",
        "| --- |" + " --- |" * len(rates),
    ]
    for policy in dict.fromkeys(row.policy for row in found.rows):
        lines.append(f"| {policy} | " + " | ".join(cells.get((policy, rate), "-") for rate in rates) + " |")
    return "\n".join(lines)


def _row(answer: dict[str, Any], rate_rps: float, row: dict[str, Any]) -> OracleRow:
    return OracleRow.model_validate({"rate_rps": rate_rps, "requests": answer["requests"], **row})
