"""Measures, in the worker and at the end of its warm-up, how long steps take in each precision: nestedfp/steps/step_costs.py.

On a GPU vLLM's own collector times the model's forward pass with CUDA events, CUDA graphs included, so the host's work
for a step is not in it. On a CPU, where the plugin's option ``step_costs`` asks for it, the clock times whole dummy steps;
they have no attention, so FP8 looks a little better than in a real step. That takes two seconds, a GPU some, by the model.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.v1.worker.gpu.input_batch import InputBatch

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.steps.step_costs import MixedCosts, StepCost, StepCosts
from nestedfp.vllm_plugin.ranks.graph_sizes import MIXED_EXACT_ROWS

logger = init_logger("vllm.nestedfp")

# Context of each dummy decode request: attention is learned from real steps (nestedfp/steps/step_times.py). With a usual one it
# would be a third of a step of 256 requests, which the same row says of a prompt of 256 tokens.
CONTEXT_TOKENS = 16
FINER_FROM_TOKENS = 128  # arithmetic begins to bound a step somewhere beyond, which lines between powers of two miss
PRIME = 7919  # by which the tokens of dummy steps differ
LARGEST_TOKENS = 2048  # a larger step is bound by arithmetic as this one is
CPU_BUDGET_S = 2.0
MOST_MIXED_EXACT_TOKENS = 512  # of the numbers that have graphs
MIXED_FAST_TOKENS = (128, 256, 384, 512, 640, 768, 1024)


def sizes(largest: int, decode_rows: int = 1) -> list[int]:
    """Return the step sizes to measure, ascending: powers of two, from 128 on halfway between as well, and ``largest``.

    Each is a multiple of ``decode_rows``, of one request that decodes: more than 1 where a step verifies its drafts.
    """
    powers = [1 << i for i in range(largest.bit_length())]
    between = [3 * power // 2 for power in powers if power >= FINER_FROM_TOKENS]
    found = {size for size in powers + between if size <= largest} | {largest}
    return sorted({max(size // decode_rows, 1) * decode_rows for size in found})


def measure_gpu(runner: Any, runs_mixed: bool) -> StepCosts:
    """Time steps of vLLM's V2 model runner: decode steps of the sizes that have graphs, larger ones as prefills.

    Args:
        runs_mixed: whether steps of exact and fast rows are timed too.
    """
    began_s = time.monotonic()
    times: dict[tuple[int, Mode], list[float]] = defaultdict(list)
    set_modes = {mode: partial(ops.set_mode, mode) for mode in Mode}
    before = ops.get_mode()
    try:
        with different_tokens(runner):
            for tokens in sizes(min(LARGEST_TOKENS, runner.max_num_tokens), runner.decode_query_len):
                order = [mode for _ in range(7 if tokens <= 512 else 3) for mode in Mode]
                steps = _time_gpu(runner, tokens, [set_modes[mode] for mode in order])
                for mode, ms in list(zip(order, steps, strict=True))[len(Mode) :]:  # the first of each is a warm-up
                    times[tokens, mode].append(ms)
            mixed = _mixed_gpu(runner) if runs_mixed else None
    finally:
        ops.set_mode(before)
    return _logged(times, mixed, began_s)


@contextmanager
def different_tokens(runner: Any) -> Iterator[None]:
    """Have dummy steps compute different tokens. vLLM's are padding, which no expert computes, and equal."""
    ids = torch.arange(runner.max_num_tokens, device=runner.device) * PRIME % runner.vocab_size
    make_dummy = InputBatch.make_dummy

    def different(num_reqs: int, num_tokens: int, *args: Any, **kwargs: Any) -> InputBatch:
        batch = make_dummy(num_reqs, num_tokens, *args, **kwargs)
        batch.input_ids.copy_(ids[:num_tokens])
        batch.is_padding.fill_(False)
        return batch

    InputBatch.make_dummy = different
    try:
        yield
    finally:
        InputBatch.make_dummy = make_dummy


def _time_gpu(runner: Any, tokens: int, set_rows: list[Callable[[], None]]) -> list[float]:
    """Return the milliseconds of dummy steps, each after what sets its precision."""
    decode = tokens <= runner.max_num_reqs * runner.decode_query_len
    with runner.step_timing.collect() as samples:
        for set_them in set_rows:
            set_them()
            runner._dummy_run(
                tokens, uniform_decode=decode, skip_eplb=True, context_len=CONTEXT_TOKENS if decode else 0
            )
            # The collector takes a step as done with its draft; without a speculator nobody marks that.
            runner.step_timing.drafter_start()
            runner.step_timing.drafter_end()
    if len(samples) != len(set_rows):
        raise RuntimeError(f"vLLM timed {len(samples)} of {len(set_rows)} steps of {tokens} tokens")
    return [sample.forward_ms + sample.drafter_ms for sample in samples]


def _mixed_gpu(runner: Any) -> MixedCosts | None:
    """Time mixed steps; None where no step has room for the smallest."""
    room = runner.max_num_tokens
    most = min(MOST_MIXED_EXACT_TOKENS, room // 2)
    exact = [tokens for tokens in MIXED_EXACT_ROWS if tokens <= most and tokens + MIXED_FAST_TOKENS[0] <= room]
    if not exact:
        return None
    fast = [tokens for tokens in MIXED_FAST_TOKENS if exact[-1] + tokens <= room]
    rows = {tokens: tuple(_mixed_ms(runner, tokens, each) for each in fast) for tokens in exact}
    for below, tokens in pairwise(exact):  # a step with one row more replays the next graph
        rows[below + 1] = rows[tokens]
    measured = tuple(sorted(rows))
    return MixedCosts(measured, tuple(fast), tuple(rows[tokens] for tokens in measured))


def _mixed_ms(runner: Any, exact: int, fast: int) -> float:
    set_rows = partial(ops.set_mixed, torch.arange(exact + fast) < exact)
    return statistics.median(_time_gpu(runner, exact + fast, [set_rows] * 4)[1:])


@torch.random.fork_rng(devices=())  # vLLM draws tokens from the generator that requests are sampled with
def measure_cpu(runner: Any, runs_mixed: bool) -> StepCosts:
    """Time dummy steps of the CPU's model runner in ascending size until the time is spent.

    Args:
        runs_mixed: whether the engine takes mixed steps, which cost their exact and their fast rows one after the other.
    """
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
                runner._dummy_run(tokens, randomize_inputs=True)  # see different_tokens
                times[tokens, mode].append((time.perf_counter() - start_s) * 1e3)
            now_s = time.monotonic()
            if (now_s - began_s) + 2 * (now_s - size_began_s) > CPU_BUDGET_S:  # the next size takes up to twice as long
                break
    finally:
        ops.set_mode(before)
    costs = _logged(times, None, began_s)
    return replace(costs, mixed=_in_turn(costs)) if runs_mixed else costs


def _in_turn(costs: StepCosts) -> MixedCosts:
    ms = tuple(tuple(one.fp16_ms + other.fp8_ms for other in costs.rows) for one in costs.rows)
    measured = tuple(row.tokens for row in costs.rows)
    return MixedCosts(measured, measured, ms)


def _logged(times: dict[tuple[int, Mode], list[float]], mixed: MixedCosts | None, began_s: float) -> StepCosts:
    measured = sorted({tokens for tokens, _ in times})
    costs = StepCosts(
        tuple(StepCost(n, *(statistics.median(times[n, mode]) for mode in (Mode.FP16, Mode.FP8))) for n in measured),
        mixed,
    )
    table = ", ".join(f"{row.tokens}: {row.fp16_ms:.2f}/{row.fp8_ms:.2f}" for row in costs.rows)
    logger.info(
        "step costs, tokens: FP16/FP8 ms: %s; with directive auto FP8 pays from %s tokens; measured in %.2f s",
        table,
        costs.fp8_pays_from(),
        time.monotonic() - began_s,
    )
    if mixed is not None:
        cells = (
            f"{exact}+{fast}: {ms:.2f}"
            for exact, row in zip(mixed.exact_tokens, mixed.ms, strict=True)
            for fast, ms in zip(mixed.fast_tokens, row, strict=True)
        )
        logger.info("mixed steps, exact+fast tokens: ms: %s", ", ".join(cells))
    return costs
