"""What a switch of precision costs: times of the steps right after a switch beside those of the same mode long after one.

    python -m benchmarks.engine.engine_switch --models llama-8b

A batch of decoding requests; the precision changes every ten steps. Rows
``model,mode,batch,steps_after_switch,count,p50_ms,max_ms``; a time is the distance between the ends of two steps, so the
first step after a switch contains whatever the switch costs.
"""

import itertools
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.engine import engine_process
from benchmarks.engine.engine_steps import Driver

RESULT = Path(__file__).parents[1] / "results" / "h100-switch.csv"
COLUMNS = ("model", "mode", "batch", "steps_after_switch", "count", "p50_ms", "max_ms")
BATCHES = (1, 32, 256)
PERIOD_STEPS, PERIODS = 10, 60


def measure(spec: dict[str, Any]) -> None:
    """In a process of its own: start one engine, switch every few steps."""
    llm = engine_process.start(spec)
    from nestedfp.modes import Mode
    from nestedfp.steps.step_rule import StepChoice
    from nestedfp.vllm_plugin.scheduling import scheduler

    count = 0

    def periodic(*_: Any) -> StepChoice:
        nonlocal count
        count += 1
        return StepChoice(Mode.FP8 if count // PERIOD_STEPS % 2 else Mode.FP16, "periodic")

    scheduler.choose = periodic  # type: ignore[assignment]
    driver = Driver(llm)
    for batch in BATCHES:
        ids = driver.submit(batch, 128, 1500)
        steps = driver.record(0, batch, PERIOD_STEPS * PERIODS)
        driver.abort(ids)
        driver.drain()
        times: dict[tuple[str, int], list[float]] = defaultdict(list)
        since = 0
        for before, after in itertools.pairwise(steps):
            since = 1 if after.mode != before.mode else since + 1
            times[after.mode, since].append((after.ended_s - before.ended_s) * 1e3)
        for (mode, since), found in sorted(times.items()):
            if since <= PERIOD_STEPS and len(found) >= PERIODS // 4:
                engine_process.row(
                    spec["model"],
                    mode,
                    batch,
                    since,
                    len(found),
                    round(statistics.median(found), 4),
                    round(max(found), 4),
                )


def main(argv: list[str] | None = None) -> int:
    """Run every engine in turn; return the exit status."""
    parser = engine_process.parser_of("benchmarks.engine.engine_switch", __doc__, "llama-8b", RESULT)
    parser.set_defaults(systems="nestedfp")
    return engine_process.main(parser, argv, measure, COLUMNS, 4)


if __name__ == "__main__":
    sys.exit(main())
