"""Tiles of the products of experts, by how many rows an expert has in the mean. Pure.

The best of those measured on an H200 for the shapes of Qwen3-30B-A3B and Mixtral 8x7B. A step of few rows is bound by memory: its
tiles are narrow, and read 128 bytes and more of a row of weights. vLLM looks its tiles up by shape and type, and has files for few.
"""

from collections.abc import Sequence

# Rows of an expert up to which a tile is as high as the name says. The grouped kernel has a fixed cost that few rows do not pay.
EXACT_16, EXACT_32, GROUPED_128 = 10, 40, 128
FAST_16, FAST_32, FAST_64 = 12, 24, 60
LONG_K = 4096  # from which on a step of 256 is faster for few rows
UNROLLED = (4, 3, 2)  # steps of K after which the tensor cores of the grouped kernel wait for weights once


def _tiles(m: int, n: int, k: int, group: int, warps: int, stages: int) -> dict[str, int]:
    return {
        "BLOCK_SIZE_M": m,
        "BLOCK_SIZE_N": n,
        "BLOCK_SIZE_K": k,
        "GROUP_SIZE_M": group,
        "num_warps": warps,
        "num_stages": stages,
    }


LOW, LOW_LONG = _tiles(16, 64, 128, 1, 8, 4), _tiles(16, 64, 256, 1, 8, 3)
MIDDLE, PLAIN = _tiles(32, 64, 128, 1, 4, 3), _tiles(64, 128, 64, 16, 4, 3)
EXACT = (LOW, LOW_LONG, MIDDLE, PLAIN)
WIDE, WIDE_SHORT = _tiles(128, 128, 128, 16, 8, 3), _tiles(128, 128, 64, 16, 8, 4)
HIGH = _tiles(256, 128, 64, 16, 8, 4)
GROUPED = (WIDE, WIDE_SHORT, HIGH)
FAST_LOW, FAST_LOW_LONG = _tiles(16, 64, 128, 1, 4, 4), _tiles(16, 64, 256, 1, 4, 4)
FAST_MIDDLE, FAST_WIDE = _tiles(32, 64, 128, 1, 4, 3), _tiles(64, 128, 128, 16, 4, 3)
FAST_HIGH = _tiles(128, 256, 128, 16, 8, 4)
FAST = (FAST_LOW, FAST_LOW_LONG, FAST_MIDDLE, FAST_WIDE, FAST_HIGH)


def name(tiles: dict[str, int]) -> str:
    """Return tiles as tables have them: sizes in M, N and K, then the group, warps and stages."""
    return "x".join(map(str, tiles.values()))


def unrolled(k: int, step: int) -> int | None:
    """Return how many steps of ``k`` the grouped kernel takes at a time; None: it does not take this ``k``."""
    return next((count for count in UNROLLED if k % (count * step) == 0), None)


def exact(rows: float, ks: Sequence[int]) -> tuple[bool, list[dict[str, int]]]:
    """Return whether the grouped kernel is to compute a layer's exact products, and the tiles of each, equally high.

    Args:
        rows: of an expert, in the mean.
        ks: columns of the weights of each product, multiples of 64.
    """
    if rows <= EXACT_16:
        return False, [LOW_LONG if k >= LONG_K else LOW for k in ks]
    if rows <= EXACT_32:
        return False, [MIDDLE] * len(ks)
    if any(unrolled(k, 64) is None for k in ks):
        return False, [PLAIN] * len(ks)
    if rows <= GROUPED_128:
        return True, [WIDE if unrolled(k, 128) else WIDE_SHORT for k in ks]
    return True, [HIGH] * len(ks)


def fast(rows: float, ks: Sequence[int]) -> list[dict[str, int]]:
    """Return the tiles of a layer's FP8 products, equally high; arguments as ``exact`` has them."""
    if rows <= FAST_16:
        return [FAST_LOW_LONG if k >= LONG_K else FAST_LOW for k in ks]
    return [FAST_MIDDLE if rows <= FAST_32 else FAST_WIDE if rows <= FAST_64 else FAST_HIGH] * len(ks)
