"""Reports of an experiment's load tests -> one summary. python -m docs.tables shows it."""

import json
from itertools import product
from pathlib import Path

from pydantic import ValidationError

from experiments.config import Experiment, ExperimentError, Run, TraceWindow
from loadtest.report.run_summary import LoadFigures, RunSummary
from workload.frozen import FrozenModel
from workload.slo import Slo

KEPT = "summary.json"
MACHINE = "machine.txt"  # in the folder of the reports: what they were measured on
MACHINES = " | then: "  # between machines in a summary


class Cell(LoadFigures):
    """One load test in numbers."""

    system: str
    rate_rps: float  # asked for
    seed: int
    errors: dict[str, int]


class Results(FrozenModel):
    """An experiment and what came out."""

    name: str
    slo: Slo
    replicas: int
    window: TraceWindow
    machine: str
    runs: tuple[Cell, ...]


def collect(experiment: Experiment, out: Path) -> Results:
    """Read every report below ``out``.

    Raises:
        ExperimentError: when there is none, or one of another version.
    """
    cells = []
    for run, rate, seed in product(experiment.runs, experiment.load.rates_rps, experiment.load.seeds):
        for path in sorted((out / "runs" / run.name / f"{rate:g}-{seed}").glob("*/summary.json")):
            try:
                for told in json.loads(path.read_text())["runs"]:
                    cells.append(_cell(run, rate, seed, RunSummary.model_validate(told), experiment.slo))
            except ValidationError as error:
                raise ExperimentError(
                    f"{path.parent}: a report of another version ({_first_key(error)}); run that load test again"
                ) from error
    if not cells:
        raise ExperimentError(
            f"{out}: expected reports in runs/<name>/<rate>-<seed>/, found none: run the experiment first"
        )
    return Results(
        name=experiment.name,
        slo=experiment.slo,
        replicas=experiment.replicas,
        window=experiment.load.window,
        machine=(out / MACHINE).read_text().strip() if (out / MACHINE).exists() else "not recorded",
        runs=tuple(cells),
    )


def _first_key(error: ValidationError) -> str:
    return ".".join(map(str, error.errors(include_url=False)[0]["loc"]))


def _cell(run: Run, rate_rps: float, seed: int, summary: RunSummary, slo: Slo) -> Cell:
    if summary.slo != slo:
        raise ExperimentError(f"a report of {run.name} has the SLO {summary.slo}, the experiment {slo}: run it again")
    told = {name: getattr(summary, name) for name in LoadFigures.model_fields}
    told |= {
        "policy": run.name,
        "system": run.system,
        "rate_rps": rate_rps,
        "seed": seed,
        "errors": summary.error_kinds,
    }
    told["fp16_token_share"] = {"vllm_fp16": 1.0, "vllm_fp8": 0.0}.get(run.system, summary.fp16_token_share)
    return Cell.model_validate(told)


def write(results: Results, folder: Path) -> None:
    """Write the summary to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / KEPT).write_text(results.model_dump_json(indent=1) + "\n")


def joined(before: Results, new: Results) -> Results:
    """Return the new load tests, and those of a summary that are not among them: reports from several machines add up.

    Raises:
        ExperimentError: when the two are not of one experiment, with what differs.
    """
    for key in ("name", "slo", "replicas", "window"):
        if getattr(before, key) != getattr(new, key):
            raise ExperimentError(
                f"{key}: the summary there has {getattr(before, key)}, the reports {getattr(new, key)}: they are no parts of one "
                f"experiment; remove {KEPT} to replace it"
            )

    def place(cell: Cell) -> tuple[str, float, int]:
        return cell.policy, cell.rate_rps, cell.seed

    measured = {place(cell) for cell in new.runs}
    kept = [cell for cell in before.runs if place(cell) not in measured]
    order = list(dict.fromkeys(cell.policy for cell in (*before.runs, *new.runs)))
    runs = sorted((*kept, *new.runs), key=lambda cell: (order.index(cell.policy), cell.rate_rps, cell.seed))
    machines = dict.fromkeys([*(before.machine.split(MACHINES) if kept else ()), *new.machine.split(MACHINES)])
    return new.model_copy(update={"machine": MACHINES.join(machines), "runs": tuple(runs)})


def read(folder: Path) -> Results:
    """Read a summary.

    Raises:
        ExperimentError: when there is none, or one of another version.
    """
    try:
        return Results.model_validate_json((folder / KEPT).read_text())
    except OSError as error:
        raise ExperimentError(
            f"{folder / KEPT}: {error.strerror}; give the folder of an experiment's results"
        ) from error
    except ValidationError as error:
        raise ExperimentError(
            f"{folder / KEPT}: of another version ({_first_key(error)}); remove it to sum the reports up anew"
        ) from error
