"""Hold the simulator against a live run of the load test.

    python -m simulator validate --run runs/20261121T033704Z

The engine model is fitted to the steps of the run's own FP16 and FP8 phases (see ``live_run``), or taken from --table.
Then all three phases are simulated with the run's own arrivals and the service's own controller section, and the
percentiles stand beside the live ones; for the adaptive phase also the mode over time. What the two static phases say is
how well the engine is modelled; the adaptive phase was not fitted to.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controller.config import ControllerConfig, explain
from nestedfp.modes import Mode
from simulator.arguments import check_folders, make_parser, read_section, read_yaml
from simulator.cluster.cluster import Cluster, RunResult
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import EngineLimits, EngineTable, Source, read_table
from simulator.engine.request import SimRequest
from simulator.errors import SimulationError
from simulator.fit import live_run
from simulator.fit.fit import fit_cost
from simulator.simulation_summary import replica_figures
from workload.percentiles import Percentiles, percentiles

SAMPLE_S = 0.1  # of the comparison of modes


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = make_parser("validate", __doc__)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="folder that the load test wrote")
    parser.add_argument("--config", type=Path, metavar="YAML", help="of the service (the one that the run names)")
    parser.add_argument("--table", type=Path, metavar="JSON", help="the engine (fitted to the run's static phases)")
    parser.add_argument(
        "--kv-tokens", type=int, default=400_000, metavar="N", help="that the KV cache held (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison")
    args = parser.parse_args(arguments)
    try:
        check_folders(args.json)
        found = validate(args)
        if args.json is not None:
            args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except (SimulationError, OSError) as error:
        print(f"validate: {error}", file=sys.stderr)
        return 1
    print_comparison(found)
    return 0


def validate(args: argparse.Namespace) -> dict[str, Any]:
    """Fit, simulate, compare; ready for JSON."""
    run = live_run.read_run(args.run)
    config_path = args.config or (Path(run.service_config) if run.service_config else None)
    if config_path is None:
        raise SimulationError("the run does not name the service's configuration; give --config")
    section, engine = read_section(config_path), read_yaml(config_path).get("engine", {})
    table = read_table(args.table) if args.table else fit_engine(run, engine, args.kv_tokens)
    exact = run.phases["fp16"]
    sizes = {request.prompt_tokens for request in exact.requests}
    front_end_s = live_run.front_end_s(exact, {size: table.fp16.step_s(size, 0, 0) for size in sizes})
    phases = {}
    for name, phase in run.phases.items():
        policy = {} if name == "adaptive" else {"policy": {"name": f"static_{name}"}}
        try:
            config = ControllerConfig.model_validate({**section, **policy})
        except ValidationError as error:
            raise SimulationError(f"{config_path}: {explain(error)}") from error
        phases[name] = compare(phase, simulate(table, config, run, phase, front_end_s, args.seed), run.duration_s)
    return {
        "run": args.run.name,
        "model": run.model,
        "fit": {mode: getattr(table, f"fit_{mode}").model_dump() for mode in Mode},
        "cost": {mode: table.cost(mode).model_dump() for mode in Mode},
        "front_end_ms": front_end_s * 1e3,
        "phases": phases,
    }


def fit_engine(run: live_run.LiveRun, engine: dict[str, Any], kv_tokens: int) -> EngineTable:
    """The engine model that the run's own static phases give."""
    fitted = {mode: fit_cost(live_run.steps_of(run.phases[mode.value])) for mode in Mode}
    known = {name: engine[name] for name in ("max_num_batched_tokens", "max_num_seqs") if engine.get(name)}
    return EngineTable(
        model=run.model,
        gpu="that of the run",
        versions="those of the run",
        command="python -m simulator validate",
        sources=(Source(file="requests of the static phases", sha256="not taken"),),
        engine=EngineLimits(kv_tokens=kv_tokens, async_scheduling="cpu_threads" not in engine, **known),
        fp16=fitted[Mode.FP16][0],
        fp8=fitted[Mode.FP8][0],
        fit_fp16=fitted[Mode.FP16][1],
        fit_fp8=fitted[Mode.FP8][1],
    )


def simulate(
    table: EngineTable,
    config: ControllerConfig,
    run: live_run.LiveRun,
    phase: live_run.Phase,
    front_s: float,
    seed: int,
) -> RunResult:
    """The phase's requests through the simulated service; the samples are (time, mode of the directive)."""
    requests = [
        SimRequest(index, request.at_s + front_s, request.prompt_tokens, request.output_tokens)
        for index, request in enumerate(sorted(phase.requests, key=lambda request: request.at_s))
    ]

    def look(now_s: float, cluster: Cluster) -> tuple[float, str]:
        return now_s, cluster.records[-1].to_mode.value if cluster.records else "fp16"

    scenario = Scenario(replicas=run.replicas, seed=seed)
    result = Cluster(table, config, scenario, observe=look, observe_every_s=SAMPLE_S).run(requests)
    for request in requests:
        request.arrived_s -= front_s  # latencies count from where the live ones do
    return result


def compare(phase: live_run.Phase, result: RunResult, duration_s: float) -> dict[str, Any]:
    """Live and simulated numbers of one phase."""
    done = [request for request in result.requests if request.outcome == "finished"]
    tpots_ms = [tpot_ms for request in done if (tpot_ms := request.tpot_ms) is not None]
    live_modes = list(phase.modes)
    sampled = [(at_s, mode) for at_s, mode in result.samples if at_s < duration_s]
    agreeing = sum(_mode_at(live_modes, at_s) == mode for at_s, mode in sampled)
    switches = sum(a[1] != b[1] for a, b in pairwise(sampled))
    return {
        "requests": len(done),
        "ttft_ms": _beside(percentiles(r.ttft_ms for r in phase.requests), percentiles(r.ttft_ms for r in done)),
        "tpot_ms": _beside(
            percentiles(r.tpot_ms for r in phase.requests if r.tpot_ms is not None), percentiles(tpots_ms)
        ),
        "fp16_token_share": {"live": phase.fp16_token_share, "simulated": replica_figures(result)["fp16_token_share"]},
        "switches": {"live": len(live_modes) - 1, "simulated": switches},
        "same_mode_share": agreeing / len(sampled) if sampled else None,
        "modes": {"live": live_modes, "simulated": _changes(sampled)},
    }


def _beside(live: Percentiles, simulated: Percentiles) -> dict[str, dict[str, float | None]]:
    beside = {}
    for level in ("p50", "p90", "p99"):
        a, b = getattr(live, level), getattr(simulated, level)
        beside[level] = {"live": a, "simulated": b, "error": None if not a or b is None else b / a - 1}
    return beside


def _mode_at(changes: Sequence[tuple[float, str]], at_s: float) -> str | None:
    return next((mode for since_s, mode in reversed(changes) if since_s <= at_s), None)


def _changes(samples: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    return [*samples[:1], *(after for before, after in pairwise(samples) if before[1] != after[1])]


def print_comparison(found: dict[str, Any]) -> None:
    """The comparison as text."""
    for mode, fit in found["fit"].items():
        print(
            f"{mode}: {fit['observations']} steps fitted, relative error median {100 * fit['median_relative']:.1f} %, "
            f"max {100 * fit['max_relative']:.0f} %"
        )
    print(f"front end: {found['front_end_ms']:.1f} ms before a request reaches its engine")
    print(f"{'phase':9s} {'':8s} {'live':>10s} {'simulated':>10s} {'error':>8s}")
    for name, phase in found["phases"].items():
        for what in ("ttft_ms", "tpot_ms"):
            for level, values in phase[what].items():
                error = "?" if values["error"] is None else f"{100 * values['error']:+.1f} %"
                print(
                    f"{name:9s} {what[:4].upper()} {level} {_text(values['live']):>10s} "
                    f"{_text(values['simulated']):>10s} {error:>8s}"
                )
        shares = phase["fp16_token_share"]
        print(f"{name:9s} FP16 %   {_text(shares['live'], 100):>10s} {_text(shares['simulated'], 100):>10s}")
    adaptive = found["phases"]["adaptive"]
    print(
        f"adaptive: {adaptive['switches']['live']} switches live, {adaptive['switches']['simulated']} simulated; "
        f"the same mode {_text(adaptive['same_mode_share'], 100)} % of the time"
    )
    for side in ("live", "simulated"):
        changes = " ".join(f"{at_s:.0f}:{mode}" for at_s, mode in adaptive["modes"][side])
        print(f"modes {side:9s} (second:mode) {changes}")


def _text(value: float | None, times: float = 1.0) -> str:
    return "?" if value is None else f"{times * value:.1f}"
