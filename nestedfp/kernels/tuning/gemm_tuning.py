"""Choice of GEMM configs at load: times promising ones on a model's own weights, and hands the times to the kernels.

``torch.ops.nestedfp.linear`` takes for any number of tokens the config that the cost model likes best. Where times of this
card are known for a layer's shape, the model is corrected by the errors that it made on them (csrc/cuda/config/gemm_timings.h), so
that token counts in between and configs that were not timed profit as well.

Another config may add up in another order, so the last bits of a result may change with the times. Who needs the same bits
in every run keeps the times: nestedfp/kernels/tuning/gemm_cache.py.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from nestedfp.kernels import cuda_library as kernels
from nestedfp.kernels.cuda_library import Chain, Config, PackedWeight

# Closest where the best config changes most: tiles of 64 to 256 tokens, and few of them for 132 multiprocessors. Beyond 768 tokens
# the power cap sets the pace of large layers, and in the few milliseconds that a config gets here it does not show who draws the
# power. Chosen by such times, their configs for 769 to 8192 tokens were slower than the cost model's by 3 % in the mean. Small
# layers have few tiles there, and the model errs on how these fill the card: configs for 870 to 1,200 tokens took 2.6 % less.
# Times at 1,280 and more, 256 tokens apart, gained nothing in between.
TUNED_TOKENS: tuple[int, ...] = (1, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 288, 320, 352, 384)
TUNED_TOKENS += (448, 480, 512, 576, 640, 704, 768, 896, 1024, 1152)
ALL_LAYERS_TOKENS = 768
SMALL_OUTPUTS = 2 * 132 * 128 * 256  # elements of [M, N]: two waves of large tiles on an H100
PRECISIONS = (kernels.FP16, kernels.FP8)
CANDIDATES, OF_A_TILE = 14, 5  # fewer left out what was up to 7 % faster (28,672 x 4,096, 640 tokens)
FINALISTS = 2  # fastest configs that are timed again
# From so many tokens on a card slows down by up to 10 % while it is being measured, as its power cap begins to act, and what is
# timed first looks best. There more are timed again, in turns whose order is reversed each time.
CAPPED_TOKENS, CAPPED_FINALISTS, CAPPED_ROUNDS = 256, 5, 2
REFERENCES = 2  # best by prediction, timed again whatever they took
ROTATED_BYTES = 150e6  # three times an H100's L2: the layers of a chain together have at least as many


class Timing(NamedTuple):
    """One timed config: microseconds of a GEMM [m, k] x [n, k] within a chain of layers."""

    precision: int
    m: int
    n: int
    k: int
    config: Config
    us: float

    @classmethod
    def of_list(cls, values: Sequence[Any]) -> "Timing":
        """Return it as JSON has kept it."""
        precision, m, n, k, config, us = values
        return cls(precision, m, n, k, Config(*config), us)


def take(timings: Iterable[Timing], num_sms: int) -> int:
    """Give timings to the kernels; from now on they guide the choice. Return how many fit the kernels that are installed."""
    library, taken = kernels.library(), 0
    for t in timings:
        refused = library.nestedfp_take_timing(t.precision, t.m, t.n, t.k, num_sms, t.config.fields(), t.us)
        taken += not refused
    return taken


def forget() -> None:
    """Return to the cost model alone."""
    kernels.library().nestedfp_forget_timings()


def rotation(weights: Sequence[PackedWeight]) -> list[PackedWeight]:
    """Return weights of one shape that L2 cannot hold: some of those given, or copies where they are too few."""
    wanted = max(1, math.ceil(ROTATED_BYTES / weights[0].upper.numel()))
    found = list(weights[:wanted])
    while len(found) < wanted:
        source = found[len(found) % len(weights)]
        found.append(PackedWeight(source.upper.clone(), source.lower.clone(), source.n, source.k))
    return found


def graph_us(launch: Callable[[int], object], launches: int) -> float:
    """Return microseconds of a launch, of so many in a CUDA graph, as steps replay it; ``launch`` is given their numbers."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for i in range(launches):
            launch(i)
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * float(begin.elapsed_time(end)) / launches


def candidates(precision: int, m: int, n: int, k: int, num_sms: int) -> list[Config]:
    """Return the configs to time: those with the best predictions, but not more than a few that differ in the split only."""
    found: list[Config] = []
    for _, config in sorted(kernels.valid_configs(precision, m, n, k, num_sms), key=lambda pair: pair[0]):
        if sum(other.tile == config.tile for other in found) < OF_A_TILE:
            found.append(config)
        if len(found) == CANDIDATES:
            break
    return found


def time_cell(precision: int, m: int, weights: Sequence[PackedWeight], num_sms: int) -> list[Timing]:
    """Time the candidates of one precision and token count; the fastest again, the others by what that says of the card."""
    n, k = weights[0].n, weights[0].k
    chain = Chain(precision, m, weights, num_sms)
    found = candidates(precision, m, n, k, num_sms)
    times = {config: chain.gemm_us(config) for config in found}
    fastest = sorted(times, key=times.__getitem__)
    if m < CAPPED_TOKENS:
        for config in fastest[:FINALISTS]:
            times[config] = (times[config] + chain.gemm_us(config)) / 2
    else:
        # Some that no lucky time has chosen are among them, or luck would be taken for a card that has become slower.
        finalists = list(dict.fromkeys([*fastest[:CAPPED_FINALISTS], *found[:REFERENCES]]))
        again: dict[Config, list[float]] = {config: [] for config in finalists}
        for _ in range(CAPPED_ROUNDS):
            finalists.reverse()
            for config in finalists:
                again[config].append(chain.gemm_us(config))
        means = {config: statistics.fmean(us) for config, us in again.items()}
        slower = sum(means.values()) / sum(times[config] for config in finalists) if finalists else 1.0
        times = {config: us * slower for config, us in times.items()} | means
    return [Timing(precision, m, n, k, config, us) for config, us in times.items()]


def is_worth_timing(m: int, n: int) -> bool:
    """Whether times of [m, k] x [n, k] choose better than the cost model alone: see TUNED_TOKENS."""
    return m <= ALL_LAYERS_TOKENS or m * n <= SMALL_OUTPUTS


def tune(
    shapes: Mapping[tuple[int, int], Sequence[PackedWeight]],
    tokens: Iterable[int],
    num_sms: int,
    budget_s: float = math.inf,
    report: Callable[[str], None] | None = None,
) -> dict[tuple[int, int], list[Timing]]:
    """Time configs for every shape, one precision at a time, so that the power cap charges whoever draws the power.

    Args:
        shapes: weights by (N, K), all on the current device.
        tokens: token counts to time, of a shape those that ``is_worth_timing``.
        num_sms: multiprocessors of the current device.
        budget_s: every shape has its share of it; token counts that a share does not reach are left to the cost model.
        report: gets a line of progress for every shape.

    Returns:
        Timings by (N, K); not yet taken.
    """
    began_s = time.monotonic()
    found: dict[tuple[int, int], list[Timing]] = {}
    ordered = spread(sorted(set(tokens)))
    for i, ((n, k), weights) in enumerate(shapes.items()):
        rotated = rotation(weights)
        cells = [(precision, m) for precision in PRECISIONS for m in ordered if is_worth_timing(m, n)]
        skipped = 0
        timings: list[Timing] = []
        for precision, m in cells:
            share = (i + (PRECISIONS.index(precision) + 1) / len(PRECISIONS)) / len(shapes)
            if time.monotonic() - began_s > budget_s * share:
                skipped += 1
                continue
            try:
                timings += time_cell(precision, m, rotated, num_sms)
            except torch.OutOfMemoryError:  # such steps would not fit beside a KV cache either
                skipped += 1
        found[n, k] = timings
        if report is not None:
            report(
                f"GEMM configs for N={n}, K={k}: {len(timings)} timed at {len(cells) - skipped} of {len(cells)} token "
                f"counts and precisions, {i + 1} of {len(shapes)} shapes, {time.monotonic() - began_s:.1f} s"
            )
        del rotated
    torch.cuda.empty_cache()
    return found


def spread(values: Sequence[int]) -> list[int]:
    """Order values so that any beginning of the list covers their range: the last, every eighth, fourth, second, then all."""
    order = list(values[-1:])
    for stride in (8, 4, 2, 1):
        order += [value for value in values[::stride] if value not in order]
    return order
