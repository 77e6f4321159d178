"""Choice of the mixed GEMM's configs at load: one launch for exact and fast rows where it is faster than two.

``torch.ops.nestedfp.linear`` and ``linear_carried`` multiply the exact rows of a mixed step in FP16 and the fast ones in FP8: in
two launches, or in one that reads the weights once (csrc/cuda/gemm/mixed_sm90.cuh). Which of them, and by which config, is
measured on a model's own weights for some numbers of fast rows. A mixed tile has room for 64 exact rows whatever their number, so
that is not measured; more of them take two launches.
"""

import ctypes
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from nestedfp.kernels import cuda_library, ops
from nestedfp.kernels.cuda_library import BLOCK_COLS, MAX_WORKSPACE_BYTES, PackedWeight
from nestedfp.kernels.tuning.gemm_tuning import graph_us, rotation, spread
from nestedfp.modes import Mode

FAST_ROWS = (128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640, 768, 896, 1024)
EXACT_ROWS = 48  # beside them, when timed
SPLITS = (1, 0, -1)  # of K: none, Stream-K, Stream-K of the last wave
MOST_WASTE = 0.5  # of the tokens of the fast rows' tiles, for a tile that is tried
FINALISTS, ROUNDS = 3, 3
MIN_GAIN = 0.02  # of the time of two launches: less is noise
MOST_ERROR = 0.01  # of one launch against two, by the order of additions
LAUNCHES = 4  # of a graph that is timed


# csrc/cuda/config/mixed.h: a compiled tile, clusters of mixed tiles, split of these, of the rest.
MixedConfig = tuple[int, int, int, int]
TWO_LAUNCHES: MixedConfig = (-1, 0, 1, 1)


class MixedChoice(NamedTuple):
    """The config for weights [n, k] beside up to so many fast rows."""

    n: int
    k: int
    fast_rows: int
    config: MixedConfig

    @classmethod
    def of_list(cls, values: Sequence[Any]) -> "MixedChoice":
        """Return it as JSON has kept it."""
        n, k, fast_rows, config = values
        return cls(n, k, fast_rows, tuple(config))


def take(choices: Iterable[MixedChoice]) -> None:
    """Give choices to the kernels, which multiply in two launches what they know nothing of."""
    for *problem, config in choices:
        cuda_library.library().nestedfp_take_mixed(*problem, (ctypes.c_int * 4)(*config))


def forget() -> None:
    """Return to two launches."""
    cuda_library.library().nestedfp_forget_mixed()


def candidates(n: int, k: int, exact: int, fast: int, num_sms: int) -> Iterator[MixedConfig]:
    """Every config that is worth a try."""
    library = cuda_library.library()
    for tile, (room, beside, tokens, ctas) in enumerate(cuda_library.mixed_tiles()):
        rest = max(0, fast - beside)
        tiles = -(-rest // tokens)
        if tiles * tokens - rest > MOST_WASTE * tiles * tokens:
            continue
        blocks = num_sms // ctas
        cost = 2 * room + beside + 96  # of a mixed tile, in FP8 tokens
        share = round(blocks * cost / (cost + tiles * (tokens + 32)))
        counts = range(share - 8 // ctas, share + 8 // ctas + 1, 8 // ctas) if tiles else (0,)
        for config in itertools.product((tile,), counts, SPLITS, SPLITS if tiles else (1,)):
            size = library.nestedfp_mixed_workspace(exact, fast, n, k, num_sms, (ctypes.c_int * 4)(*config))
            if 0 <= size <= MAX_WORKSPACE_BYTES:
                yield config


class MixedLayer:
    """Times one layer's products of exact rows and then fast ones, as the operator computes them.

    Its activations are made in the mode in force.

    Args:
        exact, fast: rows of each kind.
        weights: of one shape, used in turn, on the current device; K a multiple of BLOCK_COLS.
    """

    def __init__(self, exact: int, fast: int, weights: Sequence[PackedWeight]) -> None:
        self._exact, self._fast, self._weights = exact, fast, weights
        self._mask = torch.arange(exact + fast) < exact
        k, device = weights[0].k, weights[0].upper.device
        x = torch.randn(exact + fast, 2 * k, device=device, dtype=torch.float16)
        self._carrier, self._scales = ops.silu_and_mul(x)

    def product(self, i: int) -> torch.Tensor:
        """Multiply by the i-th weight in turn, in the mode in force."""
        w = self._weights[i % len(self._weights)]
        return ops.linear_carried(self._carrier, self._scales, w.upper, w.lower, None, w.n, w.k)

    def _take(self, config: MixedConfig) -> None:
        first = self._weights[0]
        take([MixedChoice(first.n, first.k, self._fast, config)])
        ops.set_mixed(self._mask)

    def us(self, config: MixedConfig, launches: int = LAUNCHES) -> float:
        """Return microseconds of a product with this config, within a CUDA graph."""
        self._take(config)
        return graph_us(self.product, launches)

    def fastest(self, num_sms: int, until_s: float = math.inf, always_one: bool = False) -> MixedConfig:
        """Time the candidates, as many as there is time for, and the best of them against two launches.

        Args:
            until_s: by ``time.monotonic``.
            always_one: return the best launch even where two are faster.
        """
        n, k = self._weights[0].n, self._weights[0].k
        times: dict[MixedConfig, float] = {}
        found = list(candidates(n, k, self._exact, self._fast, num_sms))
        for config in (found[i] for i in spread(range(len(found)))):  # any beginning has all kinds of them
            if time.monotonic() > until_s:
                break
            times[config] = self.us(config)
        finalists = [*sorted(times, key=times.__getitem__)[:FINALISTS], TWO_LAUNCHES]
        again = {config: math.inf for config in finalists}
        for _ in range(ROUNDS):
            for config in finalists:
                again[config] = min(again[config], self.us(config, 2 * LAUNCHES))
        two_us = again.pop(TWO_LAUNCHES)
        best = min(again, key=again.__getitem__, default=TWO_LAUNCHES)
        self._check(best)
        return best if always_one or again.get(best, math.inf) < (1 - MIN_GAIN) * two_us else TWO_LAUNCHES

    def _check(self, config: MixedConfig) -> None:
        """Compare one launch with two.

        Raises:
            RuntimeError: when they do not agree.
        """
        products = []
        for each in (config, TWO_LAUNCHES):
            self._take(each)
            products.append(self.product(0))
        for rows in (slice(0, self._exact), slice(self._exact, None)):
            one, two = (product[rows].float() for product in products)
            error = float((one - two).norm() / two.norm())
            if not error < MOST_ERROR:
                raise RuntimeError(
                    f"the mixed GEMM with config {config} is off by {error}, expected {MOST_ERROR} at most"
                )


def fast_rows(max_tokens: int) -> list[int]:
    """Return the numbers of fast rows to time for steps of up to ``max_tokens`` tokens."""
    return [rows for rows in FAST_ROWS if rows + EXACT_ROWS <= max_tokens]


def tune(
    shapes: Mapping[tuple[int, int], Sequence[PackedWeight]],
    max_tokens: int,
    num_sms: int,
    budget_s: float,
    report: Callable[[str], None],
) -> dict[tuple[int, int], list[MixedChoice]]:
    """Choose for every shape (N, K) and each of ``fast_rows``; not yet taken.

    Args:
        shapes: weights with both planes, all on the current device; the kernels have taken their other timings.
        num_sms: multiprocessors of the current device.
        budget_s: shared out evenly.
        report: gets a line for every shape.
    """
    rows = fast_rows(max_tokens)
    began_s, cells, done = time.monotonic(), len(shapes) * len(rows), 0
    found: dict[tuple[int, int], list[MixedChoice]] = {}
    try:
        for (n, k), weights in shapes.items():
            rotated, choices = rotation(weights), []
            for fast in rows if k % BLOCK_COLS == 0 else ():
                done += 1
                ops.set_mixed(torch.arange(EXACT_ROWS + fast) < EXACT_ROWS)
                config = MixedLayer(EXACT_ROWS, fast, rotated).fastest(num_sms, began_s + budget_s * done / cells)
                choices.append(MixedChoice(n, k, fast, config))
            one = [choice.fast_rows for choice in choices if choice.config != TWO_LAUNCHES]
            report(
                f"exact and fast rows of N={n}, K={k}: one launch beside {one} fast rows, else two, "
                f"{time.monotonic() - began_s:.1f} s"
            )
            found[n, k] = choices
    finally:
        forget()
        ops.set_mode(Mode.FP16)
        torch.cuda.empty_cache()
    return found
