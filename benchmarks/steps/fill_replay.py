"""Logs of steps -> how often the fourth question of ``deadlines`` says yes, by whose clock steps are timed.

    python -m benchmarks.steps.fill_replay benchmarks/results/h100-load-steps/24b-pair \\
        --table simulator/engine/tables/h100-mistral-24b-load.json --out fill-replay.csv

Whether an engine fills up (nestedfp/steps/step_fill.py) depends on what steps of decodes take beyond their cost at the start. The
log's steps are given to that question twice: as the GPU timed them, and as a host times them that takes a step's output when it
has launched the next one: from the entry into one launch to the entry into the next. The table has the costs at the start and the
engine's limits. Requests that wait are not in a log; where steps have room for all that come there are none.

Only stretches with steps in both precisions are replayed: those in which somebody chose, the engine by its rule or the
controller. Rows ``log,stretch,clock,steps, fp8_share,fill_share,agree_share,decode_excess_p50_ms,decode_excess_p90_ms``;
shares are of the steps: those that ran FP8, those for which the answer is yes, and those that ran FP8 just where it is.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import results_csv
from benchmarks.steps.step_log import LoggedStep, StepLogError
from benchmarks.steps.step_sizes import took_ms
from benchmarks.steps.step_summary import steps_of
from controller.policies.deadlines import Deadlines
from nestedfp.modes import Mode
from nestedfp.steps.step_fill import FillWatch
from nestedfp.steps.step_slack import StepTimes
from simulator.engine.cost_table import EngineTable, read_table
from simulator.errors import SimulationError
from workload.percentiles import percentiles
from workload.slo import Slo

PAUSE_S = 3.0  # between two load tests
FEWEST_STEPS = 100  # a warm-up is no stretch
COLUMNS = (
    *("log", "stretch", "clock", "steps", "fp8_share", "fill_share", "agree_share"),
    *("decode_excess_p50_ms", "decode_excess_p90_ms"),
)


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step and how long it took, by one clock."""

    step: LoggedStep
    took_s: float


def by_gpu(steps: Sequence[LoggedStep]) -> Iterator[TimedStep]:
    """Time steps by the GPU, as for the simulator's tables."""
    for step in steps:
        if step.gpu_ms is not None:
            yield TimedStep(step, took_ms(step) * 1e-3)


def by_host(steps: Sequence[LoggedStep]) -> Iterator[TimedStep]:
    """Time steps by when their outputs are taken: each after the launch of the next, just before that of the one after."""
    for step, after, next_after in zip(steps, steps[1:], steps[2:], strict=False):
        yield TimedStep(step, next_after.began_s - after.began_s)


CLOCKS = {"gpu": by_gpu, "host": by_host}


def stretches(steps: Sequence[LoggedStep]) -> Iterator[list[LoggedStep]]:
    """Yield the steps between pauses, of one engine, if there are both precisions among them."""
    parts: list[list[LoggedStep]] = []
    for before, step in zip([None, *steps], steps, strict=False):
        if before is None or step.began_s - before.began_s > PAUSE_S:
            parts.append([])
        parts[-1].append(step)
    for part in parts:
        if len(part) >= FEWEST_STEPS and len({step.mode for step in part}) > 1:
            yield part


def replay(timed: Sequence[TimedStep], table: EngineTable, slo: Slo) -> tuple[object, ...]:
    """Return the columns from ``steps`` on.

    Args:
        timed: steps of one stretch.
        table: costs at the start, limits.
        slo: whose TPOT objective counts.
    """
    rule = Deadlines().rule_for(slo)
    costs = table.step_costs()
    times, watch = StepTimes(costs), FillWatch(table.engine.max_num_seqs)
    fp8 = full = agree = 0
    excess_ms: list[float] = []
    for each in timed:
        step, mode, with_prompts = each.step, Mode(each.step.mode), each.step.long_requests > 0
        kv_usage = (step.kv_tokens or 0) / table.engine.kv_tokens
        is_full = watch.late(rule, times, step.began_s, step.requests, kv_usage) is not None
        fp8, full, agree = fp8 + (mode is Mode.FP8), full + is_full, agree + (is_full is (mode is Mode.FP8))
        if not with_prompts:
            excess_ms.append(each.took_s * 1e3 - costs.times_ms(step.tokens)[mode is Mode.FP8])
        times.took(mode, step.tokens, each.took_s, with_prompts=with_prompts)
    found, count = percentiles(excess_ms), len(timed)
    shares = (round(part / count, 3) for part in (fp8, full, agree))
    ends = ("" if value is None else round(value, 2) for value in (found.p50, found.p90))
    return (count, *shares, *ends)


def main(argv: list[str] | None = None) -> int:
    """Print the table and write it; return the exit status: 0, or 2 for files that cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.fill_replay", description=__doc__)
    parser.add_argument("folder", type=Path, help="of one engine's logs")
    parser.add_argument("--table", type=Path, required=True, help="the engine's, with its costs at the start")
    parser.add_argument("--out", type=Path, help="CSV; rows of other logs in it stay")
    args = parser.parse_args(argv)
    try:
        steps, table = steps_of(args.folder), read_table(args.table)
    except (StepLogError, SimulationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not any(step.gpu_ms is not None for step in steps):
        print(f"error: {args.folder}: expected times of a GPU in the log (gpu_ms), found none", file=sys.stderr)
        return 2
    rows = [
        (args.folder.name, number, clock, *replay(list(timing(part)), table, Slo()))
        for number, part in enumerate(stretches(steps), 1)
        for clock, timing in CLOCKS.items()
    ]
    for row in (COLUMNS, *rows):
        print(",".join(map(str, row)))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        results_csv.merge(args.out, COLUMNS, 3, rows, results_csv.heading(argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
