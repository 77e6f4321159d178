"""Command line of the simulator: arguments in, JSON and table out, exit status.

python -m simulator --trace FILE --start 2400 --duration 120 --policy deadlines --replicas 4 --rate 80
"""

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controller.config import explain
from controller.policies import POLICIES
from simulator.bench import arrivals, make_config, simulate
from simulator.cluster.cluster import RunResult, Scenario
from simulator.engine.cost_table import TABLE, read_table
from simulator.errors import SimulationError
from simulator.simulation_summary import SimulationSummary
from workload.strict_yaml import YamlFileError, read_yaml_file
from workload.traces import TraceError, read_trace

EPILOG = """\
examples:
  python -m simulator --trace AzureLLMInferenceTrace_conv.csv --start 2400 --duration 120 --policy deadlines --replicas 4 --rate 80
  python -m simulator --trace FILE --start 2400 --duration 120 --policy static_fp16 --policy static_fp8 --policy deadlines \\
      --replicas 4 --rate 60 --rate 80 --json out.json
  python -m simulator --duration 600 --policy threshold --replicas 64 --rate 1500

another command: python -m simulator fit --help

exit status: 0 all runs completed, 1 failed, 2 wrong arguments
"""
HEADER = (
    f"{'policy':16s} {'rate/s':>7s} {'requests':>8s} {'SLO %':>6s} {'TTFT p50/p90/p99 ms':>22s} {'TPOT p50/p90/p99 ms':>20s} "
    f"{'FP16 %':>6s} {'exact %':>7s} {'sw/min':>6s} {'shed':>6s}"
)
Job = Callable[[], tuple[SimulationSummary, RunResult]]


def build_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m simulator",
        description="Rehearse a precision policy on a trace: simulated engines, the live control loop.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_argument_group("load")
    group.add_argument("--trace", type=Path, metavar="CSV", help="Azure trace (a synthetic one of its shape)")
    group.add_argument(
        "--rate", type=float, action="append", metavar="R", help="mean requests/s; may repeat (the trace's own)"
    )
    group.add_argument("--start", type=float, default=0.0, metavar="S", help="of the window of the trace")
    group.add_argument("--duration", type=float, metavar="S", help="of the window (all of the trace; without one 600)")
    group.add_argument("--seed", type=int, default=0)
    group = parser.add_argument_group("control")
    group.add_argument(
        "--policy", action="append", metavar="NAME", help=f"of {', '.join(POLICIES)}; may repeat (that of --config)"
    )
    group.add_argument("--config", type=Path, metavar="YAML", help="the controller's section, or a file that holds it")
    group = parser.add_argument_group("cluster")
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="(%(default)s)")
    group.add_argument("--table", type=Path, default=TABLE, metavar="JSON", help="the engine (the table that ships)")
    group.add_argument("--admission-limit", type=int, metavar="N", help="ongoing requests of a replica (none)")
    group.add_argument(
        "--max-replicas", type=int, metavar="N", help="up to which the autoscaler may go (none are added)"
    )
    group.add_argument("--cold-start", type=float, default=60.0, metavar="S", help="of an added replica (%(default)g)")
    group = parser.add_argument_group("results")
    group.add_argument("--json", type=Path, metavar="FILE", help="the numbers; several runs give a list")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(given)
    try:
        jobs = plan(args)
    except (SimulationError, TraceError) as error:
        parser.exit(2, f"simulate: {error}\n")
    try:
        summaries = run_all(jobs)
        if args.json is not None:
            plain = [summary.model_dump(mode="json") for summary in summaries]
            args.json.write_text(json.dumps(plain if len(plain) > 1 else plain[0], indent=2) + "\n", encoding="utf-8")
    except (SimulationError, OSError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 1
    return 0


def plan(args: argparse.Namespace) -> list[Job]:
    """Check everything that can be checked before the first run.

    Raises:
        SimulationError, TraceError: with one readable line.
    """
    if args.trace is None and args.start:
        raise SimulationError(
            f"--start: of the window of a --trace; a synthetic load begins at 0 s, got {args.start:g}: leave it out"
        )
    if args.duration is not None and not 0 < args.duration < float("inf"):
        raise SimulationError(f"--duration: expected seconds above 0, got {args.duration:g}")
    for rate in args.rate or ():
        if not 0 < rate < 1e6:
            raise SimulationError(f"--rate: expected requests per second above 0, got {rate:g}")
    if args.json is not None and not (args.json.parent.is_dir() and not args.json.is_dir()):
        raise SimulationError(f"--json: expected a file in a folder that exists, got {args.json}")
    try:
        scenario = Scenario(
            replicas=args.replicas,
            max_replicas=args.max_replicas,
            cold_start_s=args.cold_start,
            admission_limit=args.admission_limit,
            seed=args.seed,
        )
    except ValidationError as error:
        raise SimulationError(explain(error).replace("\n", "; ")) from error
    section = read_section(args.config)
    named = section["policy"].get("name") if isinstance(section.get("policy"), dict) else None
    policies = args.policy or ([named] if named else None)
    if policies is None:
        raise SimulationError(f"expected --policy NAME, one of {', '.join(POLICIES)}, or --config with a policy")
    table, configs = read_table(args.table), [make_config(section, policy) for policy in policies]
    trace = None if args.trace is None else read_trace(args.trace)
    loads = [arrivals(trace, args.start, args.duration, rate, args.seed) for rate in args.rate or [None]]
    if not all(loads):
        raise SimulationError("no request in the time; raise --rate or --duration")
    return [partial(simulate, table, load, config, scenario) for config, load in product(configs, loads)]


def read_section(path: Path | None) -> dict[str, Any]:
    """The controller's section of a YAML file; a file without a key ``controller`` is the section."""
    if path is None:
        return {}
    try:
        content = read_yaml_file(path)
    except YamlFileError as error:
        raise SimulationError(str(error)) from error
    section = content.get("controller", content) if isinstance(content, dict) else content
    if not isinstance(section, dict):
        raise SimulationError(f"{path}: expected keys and values, got {type(section).__name__}")
    return section


def run_all(jobs: Sequence[Job]) -> list[SimulationSummary]:
    """Run the jobs, and print each when it is done."""
    print(HEADER)
    summaries = []
    gc.disable()  # a run makes millions of objects without a cycle
    try:
        for job in jobs:
            found, _ = job()
            print(line(found), flush=True)
            summaries.append(found)
            gc.collect()
    finally:
        gc.enable()
    return summaries


def line(summary: SimulationSummary) -> str:
    """One row of the table."""
    fp16, exact = (
        "?" if share is None else f"{100 * share:.1f}"
        for share in (summary.fp16_token_share, summary.exact_answer_share)
    )
    return (
        f"{summary.policy:16s} {summary.rate_rps:7.2f} {summary.requests:8d} {100 * summary.slo_attainment:6.2f} "
        f"{summary.ttft_ms.text(0):>22s} {summary.tpot_ms.text(1):>20s} {fp16:>6s} {exact:>7s} "
        f"{summary.switches_per_min:6.2f} {summary.shed:6d}"
    )
