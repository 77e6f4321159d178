"""Command line of the simulator: arguments in, JSON, table and plot out, exit status.

python -m controller.simulate --trace FILE --policy slo_feedback --replicas 4 --load 0.8 --json out.json
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from controller.config import ControllerConfig, explain
from controller.policies import POLICIES
from controller.simulate import frontier, output
from controller.simulate.engine_model import TABLE, read_table
from controller.simulate.errors import SimulationError
from controller.simulate.metrics import SimulationSummary
from controller.simulate.scenario import Failure, Scenario
from controller.simulate.session import Bench, Generator, make_bench, make_config, simulate
from controller.simulate.workload import JITTER_S
from controller.synthetic import MEAN_RATE_RPS
from controller.trace import TraceError, read_trace

EPILOG = """\
examples:
  python -m controller.simulate --trace AzureLLMInferenceTrace_conv.csv --policy slo_feedback --replicas 4 --load 0.8
  python -m controller.simulate --trace FILE --policy static_fp16 --policy static_fp8 --policy slo_feedback \\
      --replicas 4 --load 0.6 --load 0.8 --load 1.0 --frontier frontier.png
  python -m controller.simulate --generate bursts --duration 600 --policy threshold --replicas 64 --load 0.9 --loss 0.1

exit status: 0 all runs completed, 1 failed, 2 wrong arguments
"""


@dataclass(frozen=True, slots=True)
class Job:
    """One run; sent to a worker process."""

    bench: Bench
    config: ControllerConfig
    scenario: Scenario
    load: float | None
    records: Path | None
    timeline: Path | None


def build_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m controller.simulate",
        description="Rehearse a precision policy on a trace: simulated engines, the live control loop.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_argument_group("load (one of --trace and --generate)")
    group.add_argument("--trace", type=Path, metavar="CSV", help="Azure trace")
    group.add_argument("--generate", choices=("poisson", "bursts"), help="arrivals with Azure's lengths")
    group.add_argument(
        "--load", type=float, action="append", metavar="F", help="mean rate over the FP16 capacity; may repeat"
    )
    group.add_argument("--start", type=float, default=0.0, metavar="S", help="of the window of the trace")
    group.add_argument("--duration", type=float, metavar="S", help="of the window (all of the trace; generated: 600)")
    group.add_argument(
        "--jitter",
        type=float,
        default=JITTER_S,
        metavar="S",
        help="copies of a request are moved by so much (%(default)g)",
    )
    group.add_argument("--pinned-share", type=float, default=0.0, metavar="F", help="requests that demand FP16")
    group.add_argument("--seed", type=int, default=0)
    group = parser.add_argument_group("control")
    group.add_argument(
        "--policy", action="append", metavar="NAME", help=f"of {', '.join(POLICIES)}; may repeat (that of --config)"
    )
    group.add_argument("--config", type=Path, metavar="YAML", help="the controller's section, or a file that holds it")
    group = parser.add_argument_group("cluster")
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="(%(default)s)")
    group.add_argument("--table", type=Path, default=TABLE, metavar="JSON", help="the engine (the table that ships)")
    group.add_argument("--routing", default="p2c", help="p2c as Ray Serve (default), or round_robin")
    group.add_argument("--admission-limit", type=int, metavar="N", help="ongoing requests of a replica (none)")
    group.add_argument(
        "--max-replicas", type=int, metavar="N", help="up to which the autoscaler may go (none are added)"
    )
    group.add_argument("--cold-start", type=float, default=60.0, metavar="S", help="of an added replica (%(default)g)")
    group.add_argument(
        "--fail", type=_failure, action="append", metavar="WHO@AT+DOWN", default=[],
        help="replica number or 'controller', when it fails and for how long, in seconds: 3@120+60; may repeat",
    )  # fmt: skip
    group = parser.add_argument_group("network between controller and replicas")
    group.add_argument("--delay-ms", type=float, default=1.0, metavar="MS", help="median, one way (%(default)g)")
    group.add_argument("--delay-spread", type=float, default=2.0, metavar="F", help="p84 over median (%(default)g)")
    group.add_argument("--loss", type=float, default=0.0, metavar="F", help="of messages")
    group.add_argument("--duplication", type=float, default=0.0, metavar="F", help="of messages")
    group = parser.add_argument_group("results")
    group.add_argument("--json", type=Path, metavar="FILE", help="the numbers; several runs give a list")
    group.add_argument(
        "--records", type=Path, metavar="JSONL", help="every request, as the load test writes it (one run)"
    )
    group.add_argument("--timeline", type=Path, metavar="JSONL", help="replicas every 0.5 s, likewise (one run)")
    group.add_argument("--frontier", type=Path, metavar="PNG|CSV", help="SLO attainment against share of FP16 tokens")
    group.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time (%(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    try:
        jobs = plan(args)
    except (SimulationError, TraceError) as error:
        parser.exit(2, f"simulate: {error}\n")
    try:
        summaries = run_all(jobs, args.jobs)
        if args.json is not None:
            plain = [summary.model_dump(mode="json") for summary in summaries]
            args.json.write_text(json.dumps(plain if len(plain) > 1 else plain[0], indent=2) + "\n", encoding="utf-8")
        if args.frontier is not None:
            frontier.write(args.frontier, summaries)
    except (SimulationError, TraceError, OSError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 1
    return 0


def plan(args: argparse.Namespace) -> list[Job]:
    """Check everything that can be checked before the first run.

    Raises:
        SimulationError, TraceError: with one readable line.
    """
    if (args.trace is None) == (args.generate is None):
        raise SimulationError("expected one of --trace and --generate")
    loads: list[float | None] = list(args.load) if args.load else [None]
    for load in args.load or ():
        if not 0 < load < 100:
            raise SimulationError(f"--load: expected a fraction of FP16 capacity above 0, such as 0.8, got {load:g}")
    if args.duration is not None and not 0 < args.duration < float("inf"):
        raise SimulationError(f"--duration: expected seconds above 0, got {args.duration:g}")
    if args.jobs < 1:
        raise SimulationError(f"--jobs: expected 1 or more, got {args.jobs}")
    for path in (args.json, args.records, args.timeline, args.frontier):
        if path is not None and not path.parent.is_dir():
            raise SimulationError(f"{path}: the folder {path.parent} does not exist")
    if args.frontier is not None:
        frontier.check(args.frontier)
    scenario = make_scenario(args)
    section = read_section(args.config)
    named = section.get("policy", {}).get("name") if isinstance(section.get("policy"), dict) else None
    policies = args.policy or ([named] if named else None)
    if policies is None:
        raise SimulationError(f"expected --policy NAME, one of {', '.join(POLICIES)}, or --config with a policy")
    if len(policies) * len(loads) > 1 and (args.records or args.timeline):
        raise SimulationError("--records and --timeline are of one run; give one --policy and one --load")
    table = read_table(args.table)
    if args.trace is not None:
        bench = make_bench(table, read_trace(args.trace), args.start, args.duration)
    else:
        if loads == [None]:
            raise SimulationError("--generate: expected --load, the mean rate over the FP16 capacity")
        generator = Generator(args.generate == "bursts", args.duration or 600.0, args.seed)
        bench = make_bench(table, generator.arrivals(MEAN_RATE_RPS), generator=generator)
    return [
        Job(bench, make_config(section, policy, bench), scenario, load, args.records, args.timeline)
        for policy, load in product(policies, loads)
    ]


def make_scenario(args: argparse.Namespace) -> Scenario:
    """The cluster of the arguments."""
    try:
        return Scenario.model_validate(
            {
                "replicas": args.replicas,
                "max_replicas": args.max_replicas,
                "cold_start_s": args.cold_start,
                "admission_limit": args.admission_limit,
                "routing": args.routing,
                "network": {
                    "delay_ms": args.delay_ms,
                    "spread": args.delay_spread,
                    "loss": args.loss,
                    "duplication": args.duplication,
                },
                "failures": args.fail,
                "jitter_s": args.jitter,
                "pinned_share": args.pinned_share,
                "seed": args.seed,
            }
        )
    except ValidationError as error:
        raise SimulationError(explain(error).replace("\n", "; ")) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of keys and values."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SimulationError(f"{path}: cannot read the configuration ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SimulationError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise SimulationError(f"{path}: expected keys and values, got {type(content).__name__}")
    return content


def read_section(path: Path | None) -> dict[str, Any]:
    """The controller's section of a YAML file; a file without a key ``controller`` is the section."""
    if path is None:
        return {}
    content = read_yaml(path)
    section = content.get("controller", content)
    if not isinstance(section, dict):
        raise SimulationError(f"{path}: controller: expected keys and values, got {type(section).__name__}")
    return section


def run_all(jobs: Sequence[Job], processes: int) -> list[SimulationSummary]:
    """Run the jobs, several at a time; each is printed when it and those before it are done."""
    print(output.HEADER)
    if processes == 1 or len(jobs) == 1:
        return _print_each(map(run_one, jobs))
    with ProcessPoolExecutor(min(processes, len(jobs))) as pool:
        return _print_each(pool.map(run_one, jobs))


def _print_each(summaries: Iterable[SimulationSummary]) -> list[SimulationSummary]:
    printed = []
    for summary in summaries:
        print(output.line(summary), flush=True)
        printed.append(summary)
    return printed


def run_one(job: Job) -> SimulationSummary:
    """One run, and the files that are asked for."""
    gc.disable()  # a run makes millions of objects without a cycle
    try:
        observer = {} if job.timeline is None else {"observe": output.sample}
        summary, result = simulate(job.bench, job.config, job.scenario, job.load, time.perf_counter, **observer)
        if job.records is not None:
            output.write_records(job.records, result, summary.policy, job.bench.table.model)
        if job.timeline is not None:
            output.write_timeline(job.timeline, result, summary.policy)
        return summary
    finally:
        gc.enable()
        gc.collect()


def _failure(text: str) -> Failure:
    who, _, rest = text.partition("@")
    at_s, _, down_s = rest.partition("+")
    try:
        return Failure(replica=None if who == "controller" else int(who), at_s=float(at_s), down_s=float(down_s))
    except (ValueError, ValidationError) as error:
        raise argparse.ArgumentTypeError(
            f"expected WHO@AT+DOWN, such as 3@120+60 or controller@120+5, got {text!r}"
        ) from error
