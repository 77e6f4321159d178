"""Command line of the simulator: arguments in, JSON and table out, exit status.

python -m simulator --trace FILE --start 2400 --duration 120 --policy deadlines --replicas 4 --rate 80
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from controller.config import ControllerConfig
from controller.policies import POLICIES
from simulator import arguments, output
from simulator.bench import make_config, simulate
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import EngineTable, read_table
from simulator.errors import SimulationError
from simulator.simulation_summary import SimulationSummary
from workload.traces import Arrival, TraceError

EPILOG = """\
examples:
  python -m simulator --trace AzureLLMInferenceTrace_conv.csv --start 2400 --duration 120 --policy deadlines --replicas 4 --rate 80
  python -m simulator --trace FILE --start 2400 --duration 120 --policy static_fp16 --policy static_fp8 --policy deadlines \\
      --replicas 4 --rate 60 --rate 80 --json out.json
  python -m simulator --generate bursts --duration 600 --policy threshold --replicas 64 --rate 1500

another command: python -m simulator fit --help

exit status: 0 all runs completed, 1 failed, 2 wrong arguments
"""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    table: EngineTable
    arrivals: tuple[Arrival, ...]
    config: ControllerConfig
    scenario: Scenario


def build_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = arguments.make_parser(
        "", "Rehearse a precision policy on a trace: simulated engines, the live control loop."
    )
    parser.epilog = EPILOG
    arguments.add_load(parser)
    group = parser.add_argument_group("control")
    group.add_argument(
        "--policy", action="append", metavar="NAME", help=f"of {', '.join(POLICIES)}; may repeat (that of --config)"
    )
    group.add_argument("--config", type=Path, metavar="YAML", help="the controller's section, or a file that holds it")
    arguments.add_cluster(parser)
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
    except (SimulationError, TraceError, OSError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 1
    return 0


def plan(args: argparse.Namespace) -> list[Job]:
    """Check everything that can be checked before the first run.

    Raises:
        SimulationError, TraceError: with one readable line.
    """
    load = arguments.read_load(args)
    arguments.check_folder(args.json)
    scenario = arguments.make_scenario(args)
    section = arguments.read_section(args.config)
    named = section.get("policy", {}).get("name") if isinstance(section.get("policy"), dict) else None
    policies = args.policy or ([named] if named else None)
    if policies is None:
        raise SimulationError(f"expected --policy NAME, one of {', '.join(POLICIES)}, or --config with a policy")
    table, configs = read_table(args.table), [make_config(section, policy) for policy in policies]
    arrivals = [load.arrivals(rate, scenario.seed) for rate in args.rate or [None]]
    if not all(arrivals):
        raise SimulationError("no request in the time; raise --rate or --duration")
    return [Job(table, each, config, scenario) for config, each in product(configs, arrivals)]


def run_all(jobs: Sequence[Job]) -> list[SimulationSummary]:
    """Run the jobs, and print each when it is done."""
    print(output.HEADER)
    summaries = []
    gc.disable()  # a run makes millions of objects without a cycle
    try:
        for job in jobs:
            found, _ = simulate(job.table, job.arrivals, job.config, job.scenario, time.perf_counter)
            print(output.line(found), flush=True)
            summaries.append(found)
            gc.collect()
    finally:
        gc.enable()
    return summaries
