"""How far a policy is from what is possible: a schedule that knows the future, found by search, beside what policies reach.

    python -m simulator oracle --trace FILE --policy deadlines --policy slo_auto --at static_fp8-0.01 --at deadlines

One replica. For each --at, the attainment that a policy has on this window, or so much less, or a share of the requests,
sought is the schedule with the most tokens in FP16 that attains as much (``foresight``), played by the engine that the
policies steer. What is found is possible in the simulator; whether more is, the search does not say. FP8 alone and FP16
alone are always run beside it, and the rules of which schedules are made, each for the whole window: they need no knowledge
of the future. The SLO is that of --config, or the tight one. The same arguments and --seed give the same numbers.

Exit status: 0 found, 1 failed (no schedule attains as much, for one), 2 wrong arguments.
"""

import argparse
import gc
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path

from controller.config import ControllerConfig
from controller.policies import POLICIES
from simulator import arguments
from simulator.bench import Bench, make_config, simulate
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import TABLE
from simulator.errors import SimulationError
from simulator.search.foresight import MissTarget, search
from simulator.search.schedule import LEVELS, SLICE_S, Played, Window, constant, play
from simulator.simulation_summary import met
from workload.azure import TraceError
from workload.frozen import FrozenModel
from workload.slo import Slo

USUAL = ("fp8", "fp16")  # levels that are policies
FIXED = ("static_fp8", "static_fp16")
HEADER = f"{'policy':28s} {'misses':>6s} {'SLO':>6s} {'FP16':>6s} {'of generated':>12s}"


class Reached(FrozenModel):
    """What a policy or a schedule reaches."""

    policy: str  # or "rule NAME", or "oracle at NAME"
    misses: int
    slo_attainment: float
    fp16_token_share: float  # of all tokens computed
    fp16_completion_share: float  # of the generated ones
    # of schedules:
    found_by: str | None = None  # "search", or the policy whose run is the best schedule known
    seconds: dict[str, float] | None = None  # under each level, of the schedule found by search


class OracleReport(FrozenModel):
    """What the command says."""

    model: str
    requests: int
    rate_rps: float
    slo: Slo
    rounds: int
    seed: int
    policies: tuple[Reached, ...]
    rules: tuple[Reached, ...]  # levels for the whole window that are none of the usual policies
    schedules: tuple[Reached, ...]


@dataclass(frozen=True, slots=True)
class OracleTask:
    """A checked command line."""

    bench: Bench
    load: float | None
    scenario: Scenario
    configs: tuple[ControllerConfig, ...]
    at: tuple[str, ...]
    rounds: int

    @property
    def window(self) -> Window:
        """What the schedules are for."""
        return Window(self.bench.table, self.bench.at_load(self.load, self.scenario).arrivals, self.configs[0].slo)


def build_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = arguments.make_parser("oracle", __doc__)
    arguments.add_load(parser)
    parser.add_argument("--table", type=Path, default=TABLE, metavar="JSON", help="the engine (the table that ships)")
    group = parser.add_argument_group("question")
    group.add_argument("--policy", action="append", metavar="NAME", help="to compare with; may repeat (deadlines)")
    group.add_argument(
        "--config", type=Path, metavar="YAML", help="the controller's section: SLO, a policy's parameters"
    )
    group.add_argument(
        "--at", action="append", metavar="A", help="attainment to keep: a policy's, as deadlines or static_fp8-0.01, or a "
        "share, as 0.95; may repeat (static_fp8-0.01 and that of the first policy)",
    )  # fmt: skip
    group.add_argument(
        "--rounds", type=int, default=200, metavar="N", help="of the search, for each --at (%(default)s)"
    )
    group.add_argument("--json", type=Path, metavar="FILE")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(given)
    try:
        task = plan(args)
    except (SimulationError, TraceError) as error:
        parser.exit(2, f"oracle: {error}\n")
    gc.disable()  # a replay makes many objects without a cycle
    try:
        answer = answered(task)
        if args.json is not None:
            args.json.write_text(answer.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except (SimulationError, TraceError, OSError) as error:
        print(f"oracle: {error}", file=sys.stderr)
        return 1
    finally:
        gc.enable()
    return 0


def plan(args: argparse.Namespace) -> OracleTask:
    """Check everything that can be checked before the first run.

    Raises:
        SimulationError, TraceError: with one readable line.
    """
    loads = arguments.read_loads(args)
    if len(loads) > 1:
        raise SimulationError(f"--load: expected one, got {len(loads)}")
    if args.pinned_share:
        raise SimulationError("--pinned-share: expected none; a schedule may run any step in either precision")
    if args.rounds < 1:
        raise SimulationError(f"--rounds: expected 1 or more, got {args.rounds}")
    arguments.check_folders(args.json)
    adaptive = args.policy or ["deadlines"]
    if unknown := set(adaptive) - set(POLICIES):
        raise SimulationError(f"--policy: expected one of {', '.join(POLICIES)}, got {', '.join(sorted(unknown))}")
    names = list(dict.fromkeys([*FIXED, *adaptive]))
    at = tuple(dict.fromkeys(args.at or ["static_fp8-0.01", adaptive[0]]))
    for text in at:
        allowed_misses(text, dict.fromkeys(names, 0), 1)
    section = arguments.read_section(args.config)
    bench = arguments.read_bench(args)
    if bench.load.refused:
        raise SimulationError(
            f"{bench.load.refused} requests are longer than the {bench.table.engine.longest_tokens} tokens that the engine "
            "takes, and no schedule answers them; leave them out of the trace"
        )
    configs = tuple(make_config(section, name, bench) for name in names)
    scenario = Scenario(seed=args.seed, jitter_s=args.jitter)
    return OracleTask(bench, loads[0], scenario, configs, at, args.rounds)


def answered(task: OracleTask) -> OracleReport:
    """Run the policies, then search for each target; all is printed as it comes."""
    window = task.window
    load = task.bench.at_load(task.load, task.scenario)
    count = len(window.arrivals)
    print(f"{count} requests, {load.rate_rps:.1f}/s, {window.slo.ttft_ms:g} ms and {window.slo.tpot_ms:g} ms")
    print(HEADER)
    policies = {config.policy.name: _policy_row(task, config) for config in task.configs}
    rules = [
        _row(f"rule {level.name}", play(window, constant(window, number)))
        for number, level in enumerate(LEVELS)
        if level.name not in USUAL
    ]
    for row in rules:
        print(line(row), flush=True)
    misses: dict[str, int] = {name: row.misses for name, row in policies.items()}
    targets = [MissTarget(text, allowed_misses(text, misses, count)) for text in task.at]
    found = search(window, targets, task.rounds, task.scenario.seed)
    schedules = [
        _schedule_row(target, played, policies.values()) for target, played in zip(targets, found, strict=True)
    ]
    for row in schedules:
        print(line(row))
    return OracleReport(
        model=task.bench.table.model,
        requests=count,
        rate_rps=load.rate_rps,
        slo=window.slo,
        rounds=task.rounds,
        seed=task.scenario.seed,
        policies=tuple(policies.values()),
        rules=tuple(rules),
        schedules=tuple(schedules),
    )


def line(row: Reached) -> str:
    """One row of the table."""
    return (
        f"{row.policy:28s} {row.misses:6d} {100 * row.slo_attainment:6.2f} {100 * row.fp16_token_share:6.1f} "
        f"{100 * row.fp16_completion_share:12.1f}"
    )


def _policy_row(task: OracleTask, config: ControllerConfig) -> Reached:
    summary, result = simulate(task.bench, config, task.scenario, task.load, time.perf_counter)
    misses = sum(not met(request, config.slo) for request in result.requests)
    fp16 = sum(request.completion_fp16 for request in result.requests)
    fp8 = sum(request.completion_fp8 for request in result.requests)
    row = Reached(
        policy=config.policy.name,
        misses=misses,
        slo_attainment=1 - misses / len(result.requests),
        fp16_token_share=summary.fp16_token_share or 0.0,
        fp16_completion_share=fp16 / (fp16 + fp8),
    )
    print(line(row), flush=True)
    return row


def _schedule_row(target: MissTarget, played: Played | None, policies: Iterable[Reached]) -> Reached:
    """The schedule found, or the run of a policy where that is better: it is a schedule too.

    Raises:
        SimulationError: when there is neither.
    """
    name = f"oracle at {target.name}"
    best = max(
        (row for row in policies if row.misses <= target.misses), key=lambda row: row.fp16_token_share, default=None
    )
    if best is not None and (played is None or best.fp16_token_share > played.fp16_token_share):
        return best.model_copy(update={"policy": name, "found_by": best.policy})
    if played is None:
        raise SimulationError(
            f"--at {target.name}: found no schedule that misses {target.misses} requests or fewer; ask for a lower attainment, "
            "or give more --rounds"
        )
    seconds = {
        level.name: round(count * SLICE_S, 3)
        for number, level in enumerate(LEVELS)
        if (count := played.plan.count(number))
    }
    return _row(name, played).model_copy(update={"found_by": "search", "seconds": seconds})


def _row(name: str, played: Played) -> Reached:
    return Reached(
        policy=name,
        misses=played.misses,
        slo_attainment=1 - played.misses / len(played.met),
        fp16_token_share=played.fp16_token_share,
        fp16_completion_share=played.fp16_completion_share,
    )


def allowed_misses(text: str, misses: Mapping[str, int], requests: int) -> int:
    """How many of the requests may miss the SLO at an attainment.

    Args:
        text: ``deadlines``, ``static_fp8-0.01`` or ``0.95``.
        misses: of each policy.
        requests: of all.

    Raises:
        SimulationError: for anything else.
    """
    name, _, less = text.partition("-")
    try:
        if name in misses:
            lost = float(less or 0)
        else:
            name, lost = "", 1 - float(text)
    except ValueError:
        lost = -1.0
    if not 0 <= lost <= 1:
        raise SimulationError(
            f"--at: expected one of the policies that run, {', '.join(misses)}, with or without a share taken off, as "
            f"static_fp8-0.01, or a share of the requests from 0 to 1; got {text!r}"
        )
    return min(requests, misses.get(name, 0) + floor(lost * requests + 1e-9))
