"""Tiles of the products of experts, by how many rows an expert has in the mean; of few rows by the shapes too. Pure.

The best of those measured on an H200 (benchmarks/results/h200-experts.csv). A step of few rows is bound by memory: its tiles are
narrow. vLLM looks its tiles up by shape and type, and has files for few.
"""

from collections.abc import Sequence
from math import exp, inf
from typing import TypeVar

T = TypeVar("T")

SHORT_K, LONG_K = 2048, 4096  # of few rows: below SHORT_K steps of 64 are the fastest, from LONG_K on those of 256
NAMES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


def _tiles(*values: int) -> dict[str, int]:
    return dict(zip(NAMES, values, strict=True))


# Names say how many rows a tile has.
EXACT_16 = _tiles(16, 32, 128, 1, 4, 5)
EXACT_16_SHORT, EXACT_16_LONG = _tiles(16, 32, 64, 1, 4, 6), _tiles(16, 32, 256, 1, 4, 3)
# By how many blocks of EXACT_16 there are for each multiprocessor. Blocks run in rounds of as many as fit, and a last round costs
# nearly as much as a full one: with fewer stages more fit, and wider blocks are fewer.
MULTIPROCESSORS = 132  # of an H100 or H200
EXACT_16_BY_BLOCKS = (
    (4.5, EXACT_16 | {"num_stages": 4}),
    (8.5, EXACT_16 | {"num_stages": 3}),
    (13.2, _tiles(16, 64, 64, 1, 4, 3)),
)
EXACT = (EXACT_16, EXACT_16_SHORT, EXACT_16_LONG, *(tiles for _, tiles in EXACT_16_BY_BLOCKS))
FAST_16, FAST_16_LONG = _tiles(16, 64, 128, 1, 4, 4), _tiles(16, 64, 256, 1, 4, 4)
FAST_32, FAST_64 = _tiles(32, 64, 128, 1, 4, 3), _tiles(64, 128, 128, 16, 4, 3)
FAST_128 = _tiles(128, 256, 128, 16, 8, 4)
FAST_128_MANY = _tiles(128, 256, 128, 16, 8, 3)  # vLLM's for Mixtral, which was faster
FAST = (FAST_16, FAST_16_LONG, FAST_32, FAST_64, FAST_128, FAST_128_MANY)

# The rows of an expert up to which a layer has tiles. Of few rows they depend on the shapes.
FEW_EXACT, FEW_FAST = 7, 12
FAST_BY_ROWS = ((24, FAST_32), (70, FAST_64), (400, FAST_128), (inf, FAST_128_MANY))

HEIGHTS = (64, 96, 112, 160, 224, 288)  # of grouped tiles (csrc/cuda/experts_tiles.inc)
# These are the fastest in the mean over equal and very unequal experts; at 600 rows 288 are as fast, and faster where experts are
# equal. A tile costs little more than its rows.
EXACT_BY_ROWS = ((28, 64), (56, 96), (111, 112), (157, 160), (600, 224), (inf, 288))


def name(tiles: dict[str, int] | int) -> str:
    """Return tiles as tables have them: sizes in M, N and K, then the group, warps, and stages; of grouped ones the rows."""
    return str(tiles) if isinstance(tiles, int) else "x".join(map(str, tiles.values()))


def exact(rows: float, shapes: Sequence[Sequence[int]]) -> list[dict[str, int]] | int:
    """Return the tiles of a layer's exact products by the kernel for few rows, or the rows of the grouped kernel's tiles.

    Args:
        rows: of an expert, in the mean.
        shapes: [experts, n, k] of the weights of each product; k is a multiple of 64.
    """
    if rows <= FEW_EXACT:
        return [_few(rows, *shape) for shape in shapes]
    return _up_to(EXACT_BY_ROWS, rows)


def _few(rows: float, experts: int, n: int, k: int) -> dict[str, int]:
    if k >= LONG_K:
        return EXACT_16_LONG
    chosen = experts * (1 - exp(-rows))  # experts that some row chose, where all are as likely
    blocks = chosen * n / EXACT_16["BLOCK_SIZE_N"] / MULTIPROCESSORS
    return _up_to((*EXACT_16_BY_BLOCKS, (inf, EXACT_16_SHORT if k < SHORT_K else EXACT_16)), blocks)


def fast(rows: float, shapes: Sequence[Sequence[int]]) -> list[dict[str, int]]:
    """Return the tiles of a layer's FP8 products, equally high; arguments as ``exact`` has them."""
    if rows <= FEW_FAST:
        return [FAST_16_LONG if k >= LONG_K else FAST_16 for _, _, k in shapes]
    return [_up_to(FAST_BY_ROWS, rows)] * len(shapes)


def _up_to(table: Sequence[tuple[float, T]], count: float) -> T:
    return next(tiles for most, tiles in table if count <= most)
