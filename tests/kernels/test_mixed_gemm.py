"""The GEMM that multiplies exact and fast rows in one launch, run here without a GPU: its sources on an emulated grid."""

import re
import struct

import emulated
import numpy as np
import pytest
import torch
from gemm_library import CSRC
from gemm_problems import EXACT, FP8, make, relative_error

STREAM_K = 0
TILES = [
    tuple(map(int, line))
    for line in re.findall(
        r"^NESTEDFP_MIXED_TILE\((\d+), (\d+), (\d+), (\d+)\)", (CSRC / "cuda/mixed_tiles.inc").read_text(), re.MULTILINE
    )
]


def run(program, tile, exact, fast, n, k, *, blocks, splits=(1, 1), exact_first=True, integers=False, seed=0):
    """Return the result and what it should be, [exact + fast, n]."""
    rows, pitch = exact + fast, -(-k // 64) * 64
    one, expected_exact = make(EXACT, rows, n, k, seed=seed, integers=integers)
    other, expected_fast = make(FP8, rows, n, k, seed=seed, integers=integers)
    assert torch.equal(one.upper, other.upper)
    first, fast_first = (0, exact) if exact_first else (fast, 0)
    is_fast = torch.zeros(rows, dtype=torch.bool)
    is_fast[fast_first : fast_first + fast] = True
    carrier = torch.full(
        (rows, pitch * 2), 0x7F, dtype=torch.uint8
    )  # what is not a row's own is NaN in both precisions
    carrier.view(torch.float16)[~is_fast, :k] = one.x[~is_fast]
    codes = torch.zeros(rows, pitch, dtype=torch.uint8)
    codes[:, :k] = other.codes
    carrier[is_fast, :pitch] = codes.view(rows, -1, 64)[:, :, emulated.COLUMNS].reshape(rows, pitch)[is_fast]
    scale = torch.where(is_fast, other.scale.float().flatten(), torch.nan)
    mixed_blocks, multiprocessors = blocks
    head = (tile, mixed_blocks, *splits, exact, fast, n, k, pitch, first, fast_first, multiprocessors, seed)
    given = struct.pack("13q", *head) + carrier.numpy().tobytes() + scale.numpy().tobytes()
    given += one.upper.numpy().tobytes() + one.lower.numpy().tobytes() + one.bias.numpy().tobytes()
    ended = emulated.run(program, given)
    assert ended.returncode == 0, ended.stderr.decode()[:3000]
    out = torch.from_numpy(np.frombuffer(ended.stdout, dtype=np.float16).copy()).view(rows, n)
    return out, torch.where(is_fast[:, None], expected_fast, expected_exact)


@pytest.mark.parametrize("tile", range(len(TILES)), ids=map(str, TILES))
def test_every_tile_computes_both_products_to_their_rounding(build, tile):
    exact, fast, rest, _ = TILES[tile]
    for exact_first in (True, False):
        out, expected = run(
            build.mixed, tile, exact - 13, fast + rest + 5, 421, 9 * 64 - 40, blocks=(1, 5), exact_first=exact_first
        )
        assert relative_error(out, expected) < 3e-3


SPLITS = {"parts": (2, 2), "Stream-K": (STREAM_K, STREAM_K), "mixed alone": (STREAM_K, 1), "the last wave": (-1, -1)}


@pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
def test_split_sums_that_are_exact_come_out_bit_for_bit(build, splits):
    tile = TILES.index((64, 64, 240, 2))
    blocks = (2, 8) if splits == (-1, -1) else (9, 60)
    out, expected = run(build.mixed, tile, 50, 600, 700, 16 * 128, blocks=blocks, splits=splits, integers=True)
    assert torch.equal(out, expected.half())


def test_fast_rows_that_a_mixed_tile_holds_need_no_other_blocks(build):
    out, expected = run(build.mixed, TILES.index((64, 64, 240, 2)), 64, 40, 300, 512, blocks=(0, 4), integers=True)
    assert torch.equal(out, expected.half())
