"""Measures, in the worker and at the end of its warm-up, how long steps take in each precision: nestedfp/steps/step_costs.py.

On a GPU vLLM's own collector times the model's forward pass with CUDA events, CUDA graphs included, so the host's work
for a step is not in it. On a CPU, where the plugin's option ``step_costs`` asks for it, the clock times whole dummy steps;
they have no attention, so FP8 looks a little better than in a real step. That takes two seconds, a GPU some, by the model.
"""

import statistics
import time
from collections import defaultdict
from typing import Any

from vllm.distributed.parallel_state import get_pp_group
from vllm.logger import init_logger

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.steps.step_costs import StepCost, StepCosts

logger = init_logger("vllm.nestedfp")

# Context of each dummy decode request: attention is learned from real steps (nestedfp/steps/step_slack.py). With a usual one it
# would be a third of a step of 256 requests, which the same row says of a prompt of 256 tokens.
CONTEXT_TOKENS = 16
FINER_FROM_TOKENS = 128  # arithmetic begins to bound a step somewhere beyond, which lines between powers of two miss
LARGEST_TOKENS = 2048  # a larger step is bound by arithmetic as this one is
CPU_BUDGET_S = 2.0


def sizes(largest: int) -> list[int]:
    """Return the step sizes to measure, ascending: powers of two, from 128 on halfway between as well, and ``largest``."""
    powers = [1 << i for i in range(largest.bit_length())]
    between = [3 * power // 2 for power in powers if power >= FINER_FROM_TOKENS]
    return sorted({size for size in powers + between if size <= largest} | {largest})


def measure_gpu(runner: Any) -> StepCosts | None:
    """Time steps of vLLM's V2 model runner: decode steps of the sizes that have graphs, larger ones as prefills.

    Returns:
        None with pipeline parallelism, where no rank sees a whole step.
    """
    if get_pp_group().world_size > 1:
        return None
    began_s = time.monotonic()
    times: dict[tuple[int, Mode], list[float]] = defaultdict(list)
    before = ops.get_mode()
    try:
        for tokens in sizes(min(LARGEST_TOKENS, runner.max_num_tokens)):
            decode = tokens <= runner.max_num_reqs
            order = [mode for _ in range(7 if tokens <= 512 else 3) for mode in Mode]
            with runner.step_timing.collect() as samples:
                for mode in order:
                    ops.set_mode(mode)
                    runner._dummy_run(
                        tokens, uniform_decode=decode, skip_eplb=True, context_len=CONTEXT_TOKENS if decode else 0
                    )
                    # The collector takes a step as done with its draft, and there is no speculator to mark that.
                    runner.step_timing.drafter_start()
                    runner.step_timing.drafter_end()
            if len(samples) != len(order):
                raise RuntimeError(f"vLLM timed {len(samples)} of {len(order)} steps of {tokens} tokens")
            for mode, sample in list(zip(order, samples, strict=True))[len(Mode) :]:  # the first of each is a warm-up
                times[tokens, mode].append(sample.forward_ms)
    finally:
        ops.set_mode(before)
    return _logged(times, began_s)


def measure_cpu(runner: Any) -> StepCosts:
    """Time dummy steps of the CPU's model runner in ascending size until the time is spent."""
    began_s = time.monotonic()
    times: dict[tuple[int, Mode], list[float]] = defaultdict(list)
    before = ops.get_mode()
    try:
        runner._dummy_run(1)
        for tokens in sizes(min(LARGEST_TOKENS, runner.max_num_tokens)):
            size_began_s = time.monotonic()
            for mode in (*Mode, *Mode, *Mode):
                ops.set_mode(mode)
                start_s = time.perf_counter()
                runner._dummy_run(tokens)
                times[tokens, mode].append((time.perf_counter() - start_s) * 1e3)
            now_s = time.monotonic()
            if (now_s - began_s) + 2 * (now_s - size_began_s) > CPU_BUDGET_S:  # the next size takes up to twice as long
                break
    finally:
        ops.set_mode(before)
    return _logged(times, began_s)


def _logged(times: dict[tuple[int, Mode], list[float]], began_s: float) -> StepCosts:
    measured = sorted({tokens for tokens, _ in times})
    costs = StepCosts(
        tuple(StepCost(n, *(statistics.median(times[n, mode]) for mode in (Mode.FP16, Mode.FP8))) for n in measured)
    )
    table = ", ".join(f"{row.tokens}: {row.fp16_ms:.2f}/{row.fp8_ms:.2f}" for row in costs.rows)
    logger.info(
        "step costs, tokens: FP16/FP8 ms: %s; with directive auto FP8 pays from %s tokens; measured in %.2f s",
        table,
        costs.fp8_pays_from(),
        time.monotonic() - began_s,
    )
    return costs
