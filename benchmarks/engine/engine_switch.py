"""What a switch of precision costs: times of the steps right after a switch beside those of the same mode long after one.

    python -m benchmarks.engine.engine_switch --models llama-8b

A batch of decoding requests; the precision changes every ten steps. Rows
``model,mode,batch,steps_after_switch,count,p50_ms,max_ms``; a time is the distance between the ends of two steps, so the
first step after a switch contains whatever the switch costs.
"""

import itertools
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.engine import engine_process

RESULT = Path(__file__).parents[1] / "results" / "h100-switch.csv"
COLUMNS = ("model", "mode", "batch", "steps_after_switch", "count", "p50_ms", "max_ms")
BATCHES = (1, 32, 256)
PERIOD_STEPS, PERIODS = 10, 60
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 1500
START_STEPS = 500  # in which every prompt has been computed


class Step(NamedTuple):
    """One executed step."""

    tokens: int
    mode: str
    ended_s: float


def record(llm: Any) -> list[Step]:
    """Return a list that every step of the engine is added to, by wrapping the scheduler's method."""
    scheduler, steps = engine_process.core_of(llm).scheduler, []
    update = scheduler.update_from_output

    def on_update(output: Any, *args: Any, **kwargs: Any) -> Any:
        result = update(output, *args, **kwargs)
        steps.append(Step(output.total_num_scheduled_tokens, str(output.nestedfp_mode), time.perf_counter()))
        return result

    scheduler.update_from_output = on_update
    return steps


def decode_steps(llm: Any, steps: list[Step], batch: int) -> list[Step]:
    """Return consecutive steps of ``batch`` decoding requests, which are ended behind them.

    Raises:
        RuntimeError: they did not come to decode.
    """
    from vllm import SamplingParams

    engine = llm.llm_engine
    params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    ids = [f"{batch}-{number}" for number in range(batch)]
    for request_id in ids:
        engine.add_request(request_id, engine_process.random_prompt(PROMPT_TOKENS), params)
    for _ in range(START_STEPS):
        engine.step()
        if steps and steps[-1].tokens == batch:
            break
    else:
        raise RuntimeError(f"expected a step of {batch} decodes, last was {steps[-1:]}")
    steps.clear()
    while len(steps) < PERIOD_STEPS * PERIODS:
        engine.step()
    found = steps[:]
    engine.abort_request(ids)
    while engine.has_unfinished_requests():
        engine.step()
    return found


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
    steps = record(llm)
    for batch in BATCHES:
        times: dict[tuple[str, int], list[float]] = defaultdict(list)
        since = 0
        for before, after in itertools.pairwise(decode_steps(llm, steps, batch)):
            since = 1 if after.mode != before.mode else since + 1
            times[after.mode, since].append((after.ended_s - before.ended_s) * 1e3)
        for (mode, since), found in sorted(times.items()):
            if since <= PERIOD_STEPS and len(found) >= PERIODS // 4:
                middle, worst = round(statistics.median(found), 4), round(max(found), 4)
                engine_process.row(spec["model"], mode, batch, since, len(found), middle, worst)


def main(argv: list[str] | None = None) -> int:
    """Run every engine in turn; return the exit status."""
    parser = engine_process.parser_of("benchmarks.engine.engine_switch", __doc__, "llama-8b", RESULT)
    parser.set_defaults(systems="nestedfp")
    return engine_process.main(parser, argv, measure, COLUMNS, 4)


if __name__ == "__main__":
    sys.exit(main())
