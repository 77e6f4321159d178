"""Tiles of the products of experts, by how many rows an expert has in the mean. Pure.

The best of those measured on an H200 for the shapes of Qwen3-30B-A3B and Mixtral 8x7B. A step of few rows is bound by memory: its
tiles are narrow. vLLM looks its tiles up by shape and type, and has files for few.
"""

from collections.abc import Sequence

# Rows of an expert up to which tiles are used: names say how high those are.
EXACT_16, EXACT_32, GROUPED_64, GROUPED_128 = 10, 20, 52, 700
FAST_16, FAST_32, FAST_64, FAST_128 = 12, 24, 70, 400
LONG_K = 4096  # from which on a step of 256 is faster for few rows


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
MIDDLE = _tiles(32, 64, 128, 1, 4, 3)
EXACT = (LOW, LOW_LONG, MIDDLE)
HIGH_64 = _tiles(64, 128, 64, 16, 8, 4)
HIGH_128 = _tiles(128, 128, 64, 16, 8, 4) | {"maxnreg": 128}  # for two blocks on a multiprocessor
HIGH_256 = _tiles(256, 128, 64, 16, 8, 5)
GROUPED = (HIGH_64, HIGH_128, HIGH_256)
FAST_LOW, FAST_LOW_LONG = _tiles(16, 64, 128, 1, 4, 4), _tiles(16, 64, 256, 1, 4, 4)
FAST_MIDDLE, FAST_WIDE = _tiles(32, 64, 128, 1, 4, 3), _tiles(64, 128, 128, 16, 4, 3)
FAST_HIGH = _tiles(128, 256, 128, 16, 8, 4)
FAST_MANY = _tiles(128, 256, 128, 16, 8, 3)  # vLLM's for Mixtral, which was faster
FAST = (FAST_LOW, FAST_LOW_LONG, FAST_MIDDLE, FAST_WIDE, FAST_HIGH, FAST_MANY)


def name(tiles: dict[str, int]) -> str:
    """Return tiles as tables have them: sizes in M, N and K, then the group, warps, stages, and most registers."""
    return "x".join(map(str, tiles.values()))


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
    return True, [HIGH_64 if rows <= GROUPED_64 else HIGH_128 if rows <= GROUPED_128 else HIGH_256] * len(ks)


def fast(rows: float, ks: Sequence[int]) -> list[dict[str, int]]:
    """Return the tiles of a layer's FP8 products, equally high; arguments as ``exact`` has them."""
    if rows <= FAST_16:
        return [FAST_LOW_LONG if k >= LONG_K else FAST_LOW for k in ks]
    by_rows = ((FAST_32, FAST_MIDDLE), (FAST_64, FAST_WIDE), (FAST_128, FAST_HIGH))
    return [next((tiles for most, tiles in by_rows if rows <= most), FAST_MANY)] * len(ks)
