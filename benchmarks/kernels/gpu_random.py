"""GEMM problems drawn from a seed, so that nobody can tune to them. Pure.

Shapes are those that layers have: N and K multiples of 64 from 2,048 to 75,000. N, K and M are log-uniform: as many cells
between 1 and 2 tokens as between 4,096 and 8,192.
"""

import math
import random
from collections.abc import Iterator

SIDES = (2048, 75_000)
LARGEST_WEIGHT = 400_000_000  # elements; the largest published layer that is measured elsewhere has 336 million
TOKENS = (1, 8192)


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _side(rng: random.Random) -> int:
    return _log_uniform(rng, SIDES[0] // 64, SIDES[1] // 64) * 64


def draw(seed: int, cells: int, cells_per_shape: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield shapes as ``(n, k, token counts)``, ascending counts, ``cells`` of them in all."""
    rng = random.Random(seed)
    while cells > 0:
        n, k = _side(rng), _side(rng)
        if n * k > LARGEST_WEIGHT:
            continue
        count = min(cells, cells_per_shape)
        cells -= count
        yield n, k, sorted(_log_uniform(rng, *TOKENS) for _ in range(count))
