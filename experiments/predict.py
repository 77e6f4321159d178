"""What the simulator says of an experiment: its arrivals, its policies, a table of measured step costs; no GPU."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import yaml

from benchmarks.engine.engine_shapes import SHAPES
from experiments.config import Experiment, ExperimentError, Run, controller_section
from experiments.other_ranks import Shape, derive
from loadtest.report.run_summary import exact_answer_share, fp16_token_share, meets_tpot, meets_ttft
from nestedfp.vllm_plugin.options import PluginOptions
from simulator.engine.cost_table import EngineTable, read_table, write_table
from simulator.errors import SimulationError
from workload.azure import Arrival, TraceError, read_trace
from workload.frozen import FrozenModel
from workload.percentiles import Percentiles, percentiles
from workload.records import RequestRecord, read_requests
from workload.shape import Lengths, fit_lengths, select_at_rate

KEPT = "predicted.json"
# What a request's first token takes beside the engine's steps: client, proxy, HTTP, tokens, the processes' ways to wake. Median of
# nine measured on idle services of two shapes and three hosts, 7.0 to 10.9: the unloaded TTFT (benchmarks/results/h100-http*.csv,
# nestedfp) less the engine's step of 16 tokens (start_costs of simulator/engine/tables/h100-*-load.json).
FRONT_MS = 9.7
REST_S = 15.0  # before the load: the service was ready, or between two load tests
EPOCH = datetime(2000, 1, 1)


class Prediction(FrozenModel):
    """One simulated load test; names as in ``results.Cell``."""

    policy: str
    rate_rps: float
    seed: int
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    tight_slo: float
    exact_answer_share: float | None = None  # None: of predictions from before it was told
    fp16_token_share: float | None


class Predictions(FrozenModel):
    """All of an experiment."""

    table: str
    front_ms: float = 0.0  # in every TTFT, beside the simulated engine
    runs: tuple[Prediction, ...]


def arrivals(experiment: Experiment, trace: Path, rate_rps: float, seed: int) -> tuple[Arrival, ...]:
    """Return the arrivals that the load test draws for a rate and seed, by the same functions.

    Raises:
        TraceError: the trace cannot be read.
        ExperimentError: it does not hold the experiment's load.
    """
    load = experiment.load
    lengths = Lengths(experiment.engine.max_model_len, load.length_scale, load.max_prompt_tokens, None)
    fitted, _ = fit_lengths(read_trace(trace), lengths)
    try:
        return select_at_rate(fitted, load.start_s, load.duration_s, rate_rps, seed).arrivals
    except TraceError as error:
        raise ExperimentError(
            f"{trace}: {error} (here they are start_s, rates_rps and duration_s of the configuration's load)"
        ) from error


def limited_table(table: Path, experiment: Experiment, folder: Path) -> Path:
    """Write a table of step costs of the experiment's engine: its shape, ranks and limits, not those that were measured.

    Args:
        table: the measured one, of one GPU.
        folder: for the copy.

    Returns:
        The copy's path.

    Raises:
        ExperimentError: when the table cannot be read, or nothing tells what other ranks or another shape would take.
    """
    try:
        measured = read_table(table)
        known = derived_table(measured, experiment)
    except (SimulationError, ValueError) as error:
        raise ExperimentError(str(error)) from error
    engine = experiment.engine
    limits = known.engine.model_copy(
        update={
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "max_num_seqs": engine.max_num_seqs,
            "max_model_tokens": engine.max_model_len,
            "kv_tokens": experiment.kv_cache_tokens or known.engine.kv_tokens,
            "mixed_steps": PluginOptions(**engine.plugin).mixed_steps,
        }
    )
    # An engine of other limits measures other steps at its start: up to max_num_seqs tokens they are decodes.
    same = limits.model_copy(update={name: getattr(known.engine, name) for name in ("kv_tokens", "mixed_steps")})
    start_costs = known.start_costs if same == known.engine else None
    copy = folder / table.name
    write_table(copy, known.model_copy(update={"engine": limits, "start_costs": start_costs}))
    return copy


def derived_table(measured: EngineTable, experiment: Experiment) -> EngineTable:
    """Return the measured table, or what it says of the experiment's shape and ranks (other_ranks.py).

    Raises:
        ExperimentError: when the table, or the experiment, is of no published shape.
        ValueError: when the experiment's weights do not fit.
    """
    ranks = experiment.engine.tensor_parallel_size
    if ranks == 1 and experiment.shape in (None, measured.model):
        return measured
    if measured.model not in SHAPES or experiment.shape is None:
        raise ExperimentError(
            f"{experiment.name} runs {experiment.shape or experiment.model} on {ranks} ranks and the table is of {measured.model} "
            f"on one; expected both to be one of {', '.join(SHAPES)}, or a table of the experiment's own engine"
        )
    derived = derive(measured, Shape.of(measured.model), Shape.of(experiment.shape), ranks)
    return derived.model_copy(update={"model": f"{experiment.shape} on {ranks} GPUs, from steps of {measured.model}"})


def predict(
    experiment: Experiment,
    trace: Path,
    table: Path,
    say: Callable[[str], None],
    front_ms: float = FRONT_MS,
) -> Predictions:
    """Simulate every run of this service that kills nothing.

    Args:
        experiment: with the runs.
        trace: CSV.
        table: step costs of the engine.
        say: gets a line of progress for every run.
        front_ms: of a request's TTFT beside the engine; the same for all, since it delays every request alike.

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
                    found.append(_simulate(experiment, run, rate, seed, replayed, limited, Path(folder), front_ms))
                    say(f"{run.name} at {rate:g} requests/s, seed {seed}: {100 * found[-1].tight_slo:.1f} %")
    return Predictions(table=table.name, front_ms=front_ms, runs=tuple(found))


def write_trace(path: Path, requests: tuple[Arrival, ...]) -> None:
    """Write arrivals as the simulator reads them."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for each in requests:
        at = EPOCH + timedelta(seconds=each.at_s)
        lines.append(f"{at:%Y-%m-%d %H:%M:%S.%f}0,{each.prompt_tokens},{each.output_tokens}")
    path.write_text("\n".join(lines) + "\n")


def _simulate(
    experiment: Experiment,
    run: Run,
    rate_rps: float,
    seed: int,
    trace: Path,
    table: Path,
    folder: Path,
    front_ms: float,
) -> Prediction:
    section, records = folder / "controller.yaml", folder / "records.jsonl"
    section.write_text(yaml.safe_dump(controller_section(experiment.slo, run)))
    files = {"--trace": trace, "--config": section, "--table": table, "--records": records}
    command = [sys.executable, "-m", "simulator", "--replicas", str(experiment.replicas), "--seed", str(seed)]
    command += ["--rest", f"{REST_S:g}", "--pinned-share", f"{run.exact_share:g}"]
    for option, path in files.items():
        command += [option, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExperimentError(f"simulation of {run.name}: {done.stderr.strip()[-500:]}")
    requests, slo = [_as_clients_see(record, front_ms) for record in read_requests(records)], experiment.slo
    return Prediction(
        policy=run.name,
        rate_rps=rate_rps,
        seed=seed,
        ttft_ms=percentiles(r.ttft_ms for r in requests if r.ttft_ms is not None),
        tpot_ms=percentiles(r.tpot_ms for r in requests if r.tpot_ms is not None),
        tight_slo=float(np.mean([meets_ttft(r, slo) and meets_tpot(r, slo) for r in requests])),
        exact_answer_share=exact_answer_share(requests),
        fp16_token_share=fp16_token_share(requests),
    )


def _as_clients_see(record: RequestRecord, front_ms: float) -> RequestRecord:
    return record if record.ttft_ms is None else record.model_copy(update={"ttft_ms": record.ttft_ms + front_ms})
