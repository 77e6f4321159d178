"""What the simulator says of an experiment: its arrivals, its policies, a table of measured step costs; no GPU."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import yaml

from experiments.config import Experiment, ExperimentError, Run, controller_section
from loadtest.report.run_summary import fp16_token_share, meets_tpot, meets_ttft
from workload.azure import Arrival, read_trace
from workload.frozen import FrozenModel
from workload.percentiles import Percentiles, percentiles
from workload.records import read_requests
from workload.shape import Lengths, fit_lengths, select_at_rate

KEPT = "predicted.json"
EPOCH = datetime(2000, 1, 1)


class Prediction(FrozenModel):
    """One simulated load test; names as in ``results.Cell``."""

    policy: str
    rate_rps: float
    seed: int
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    tight_slo: float
    fp16_token_share: float | None


class Predictions(FrozenModel):
    """All of an experiment."""

    table: str
    runs: tuple[Prediction, ...]


def arrivals(experiment: Experiment, trace: Path, rate_rps: float, seed: int) -> tuple[Arrival, ...]:
    """Return the arrivals that the load test draws for a rate and seed, by the same functions."""
    load = experiment.load
    lengths = Lengths(experiment.engine.max_model_len, load.length_scale, load.max_prompt_tokens, None)
    fitted, _ = fit_lengths(read_trace(trace), lengths)
    return select_at_rate(fitted, load.start_s, load.duration_s, rate_rps, seed).arrivals


def limited_table(table: Path, experiment: Experiment, folder: Path) -> Path:
    """Write a table of step costs with the limits of the experiment's engine, not those that it was measured under.

    Args:
        table: the measured one.
        folder: for the copy.

    Returns:
        The copy's path.

    Raises:
        ExperimentError: when the table cannot be read, or its steps are not those of the experiment's engine: tables are of
            one GPU.
    """
    if (ranks := experiment.engine.tensor_parallel_size) > 1:
        raise ExperimentError(
            f"{experiment.name} runs on {ranks} tensor-parallel ranks; expected tensor_parallel_size 1, whose step costs "
            f"{table.name} holds; nothing predicts steps of several ranks"
        )
    try:
        measured = json.loads(table.read_text(encoding="utf-8"))
        limits = measured["engine"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"{table}: expected a table made by python -m simulator fit: {error}") from error
    engine = experiment.engine
    limits["max_num_batched_tokens"] = engine.max_num_batched_tokens
    limits["max_num_seqs"] = engine.max_num_seqs
    limits["max_model_tokens"] = engine.max_model_len
    copy = folder / table.name
    copy.write_text(json.dumps(measured), encoding="utf-8")
    return copy


def predict(experiment: Experiment, trace: Path, table: Path, say: Callable[[str], None]) -> Predictions:
    """Simulate every run of this service that kills nothing.

    Raises:
        ExperimentError: when the simulator refuses, with its message.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder:
        limited = limited_table(table, experiment, Path(folder))
        for rate in experiment.load.rates_rps:
            for seed in experiment.load.seeds:
                replayed = Path(folder) / f"{rate:g}-{seed}.csv"
                write_trace(replayed, arrivals(experiment, trace, rate, seed))
                for run in experiment.runs:
                    if run.system != "nestedfp" or run.kill is not None:
                        continue
                    found.append(_simulate(experiment, run, rate, seed, replayed, limited, Path(folder)))
                    say(f"{run.name} at {rate:g} requests/s, seed {seed}: {100 * found[-1].tight_slo:.1f} %")
    return Predictions(table=table.name, runs=tuple(found))


def write_trace(path: Path, requests: tuple[Arrival, ...]) -> None:
    """Write arrivals as the simulator reads them."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for each in requests:
        at = EPOCH + timedelta(seconds=each.at_s)
        lines.append(f"{at:%Y-%m-%d %H:%M:%S.%f}0,{each.prompt_tokens},{each.output_tokens}")
    path.write_text("\n".join(lines) + "\n")


def _simulate(
    experiment: Experiment, run: Run, rate_rps: float, seed: int, trace: Path, table: Path, folder: Path
) -> Prediction:
    section, records = folder / "controller.yaml", folder / "records.jsonl"
    section.write_text(yaml.safe_dump(controller_section(experiment.slo, run)))
    files = {"--trace": trace, "--config": section, "--table": table, "--records": records}
    command = [sys.executable, "-m", "simulator", "--replicas", str(experiment.replicas), "--seed", str(seed)]
    for option, path in files.items():
        command += [option, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExperimentError(f"simulation of {run.name}: {done.stderr.strip()[-500:]}")
    requests, slo = read_requests(records), experiment.slo
    return Prediction(
        policy=run.name,
        rate_rps=rate_rps,
        seed=seed,
        ttft_ms=percentiles(r.ttft_ms for r in requests if r.ttft_ms is not None),
        tpot_ms=percentiles(r.tpot_ms for r in requests if r.tpot_ms is not None),
        tight_slo=float(np.mean([meets_ttft(r, slo) and meets_tpot(r, slo) for r in requests])),
        fp16_token_share=fp16_token_share(requests),
    )
