"""What the simulator says of an experiment: its arrivals, its policies, a table of measured step costs; no GPU."""

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path

from benchmarks.engine.engine_shapes import DENSE
from controller.config import ControllerConfig
from experiments.config import Experiment, ExperimentError, controller_section
from nestedfp.vllm_plugin.options import PluginOptions
from simulator.bench import simulate
from simulator.cluster.cluster import Scenario
from simulator.engine.cost_table import EngineTable, read_table
from workload.frozen import FrozenModel
from workload.percentiles import Percentiles
from workload.shape import Lengths, fit_lengths, select_at_rate
from workload.traces import Arrival, read_trace

KEPT = "predicted.json"
# What a request's first token takes beside the engine's steps: client, proxy, HTTP, tokens, the processes' ways to wake. Median of
# nine measured on idle services of two shapes and three hosts, 7.0 to 10.9: the unloaded TTFT (make bench-http ARGS=--gpu) less the
# engine's step of 16 tokens (start_costs of simulator/engine/tables/h100-*-load.json).
FRONT_MS = 9.7
REST_S = 15.0  # before the load: the service was ready, or between two load tests


class Prediction(FrozenModel):
    """One simulated load test; names as in ``results.Cell``."""

    policy: str
    rate_rps: float
    seed: int
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    slo_attainment: float
    exact_answer_share: float | None
    fp16_token_share: float | None


class Predictions(FrozenModel):
    """All of an experiment."""

    table: str
    front_ms: float = 0.0  # in every TTFT, beside the simulated engine
    runs: tuple[Prediction, ...]


def arrivals(experiment: Experiment, trace: Path, rate_rps: float, seed: int) -> tuple[Arrival, ...]:
    """Return the arrivals that the load test draws for a rate and seed, by the same functions; the first comes at 0 s.

    Raises:
        TraceError: the trace cannot be read, or does not hold the experiment's load.
        ExperimentError: prompts share prefixes.
    """
    load = experiment.load
    if experiment.engine.enable_prefix_caching:
        raise ExperimentError(
            f"{experiment.name}: the simulator has no prefix cache; measure it: python -m experiments run"
        )
    lengths = Lengths(experiment.engine.max_model_len, load.length_scale, load.max_prompt_tokens, None)
    fitted, _ = fit_lengths(read_trace(trace), lengths)
    chosen = select_at_rate(fitted, load.start_s, load.duration_s, rate_rps, seed).arrivals
    at = [timedelta(seconds=each.at_s) for each in chosen]  # to the microsecond, as a trace has them
    return tuple(
        Arrival((at_s - at[0]).total_seconds(), each.prompt_tokens, each.output_tokens)
        for at_s, each in zip(at, chosen, strict=True)
    )


def limited_table(table: Path, experiment: Experiment) -> EngineTable:
    """Return step costs of the experiment's engine: with its limits, not those of the measured one.

    Raises:
        SimulationError: when the table cannot be read.
        ExperimentError: when it is of another shape, or of other ranks.
    """
    known, engine = read_table(table), experiment.engine
    expected = experiment.shape or Path(experiment.model or "").name, engine.tensor_parallel_size
    if expected != (known.model, known.ranks):
        raise ExperimentError(
            f"{table}: expected steps of {expected[0]} on {expected[1]} GPUs, got those of {known.model} on {known.ranks}; log "
            "some with --step-log FOLDER, then python -m simulator fit --model MODEL --ranks N"
        )
    options = PluginOptions(**engine.plugin)
    limits = known.engine.model_copy(
        update={
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "max_num_seqs": engine.max_num_seqs,
            "max_model_tokens": engine.max_model_len,
            # Steps with nested experts have one precision.
            "mixed_steps": options.mixed_steps and (experiment.shape in (None, *DENSE) or options.experts == "plain"),
        }
    )
    # An engine of other limits measures other steps at its start: up to max_num_seqs tokens they are decodes.
    same = limits.model_copy(update={name: getattr(known.engine, name) for name in ("kv_tokens", "mixed_steps")})
    start_costs = known.start_costs if same == known.engine else None
    return known.model_copy(update={"engine": limits, "start_costs": start_costs})


def predict(
    experiment: Experiment,
    trace: Path,
    table: Path,
    say: Callable[[str], None],
) -> Predictions:
    """Simulate every run of this service that kills nothing; ``say`` gets a line of progress for each.

    Raises:
        ExperimentError, SimulationError, TraceError: with one readable line.
    """
    found, limited = [], limited_table(table, experiment)
    for rate, seed in product(experiment.load.rates_rps, experiment.load.seeds):
        replayed = arrivals(experiment, trace, rate, seed)
        for run in experiment.runs:
            if run.system != "nestedfp" or run.kill is not None:
                continue
            config = ControllerConfig.model_validate(controller_section(experiment.slo, run))
            scenario = Scenario(replicas=experiment.replicas, rest_s=REST_S, pinned_share=run.exact_share, seed=seed)
            summary, _ = simulate(limited, replayed, config, scenario, FRONT_MS)
            told = summary.model_dump(include=set(Prediction.model_fields))
            told |= {"policy": run.name, "rate_rps": rate, "seed": seed}
            found.append(Prediction.model_validate(told))
            exact = 100 * (summary.exact_answer_share or 0)
            say(
                f"{run.name} at {rate:g} requests/s, seed {seed}: {100 * summary.slo_attainment:.1f} % in the SLO, "
                f"{exact:.1f} % exact answers"
            )
    return Predictions(table=table.name, front_ms=FRONT_MS, runs=tuple(found))
