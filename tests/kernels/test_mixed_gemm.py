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


def run(program, tile, exact, fast, n, k, *, blocks, splits=(1, 1), integers=False, seed=0):
    """Return the result and what it should be, [exact + fast, n]."""
    rows, pitch = exact + fast, -(-k // 64) * 64
    one, expected_exact = make(EXACT, rows, n, k, seed=seed, integers=integers)
    other, expected_fast = make(FP8, rows, n, k, seed=seed, integers=integers)
    assert torch.equal(one.upper, other.upper)
    x = torch.full((exact, pitch), torch.nan, dtype=torch.float16)  # between rows: never to be read
    x[:, :k] = one.x[:exact]
    codes = torch.zeros(fast, pitch, dtype=torch.uint8)
    codes[:, :k] = other.codes[exact:]
    codes = codes.view(fast, -1, 64)[:, :, emulated.COLUMNS]
    mixed_blocks, multiprocessors = blocks
    head = (tile, mixed_blocks, *splits, exact, fast, n, k, pitch, multiprocessors, seed)
    operands = (x, codes, other.scale.float()[exact:], one.upper, one.lower, one.bias)
    given = struct.pack("11q", *head) + b"".join(operand.numpy().tobytes() for operand in operands)
    ended = emulated.run(program, given)
    assert ended.returncode == 0, ended.stderr.decode()[:3000]
    out = torch.from_numpy(np.frombuffer(ended.stdout, dtype=np.float16).copy()).view(rows, n)
    return out, torch.cat([expected_exact[:exact], expected_fast[exact:]])


@pytest.mark.parametrize("tile", range(len(TILES)), ids=map(str, TILES))
def test_every_tile_computes_both_products_to_their_rounding(build, tile):
    exact, fast, rest, _ = TILES[tile]
    out, expected = run(build.mixed, tile, exact - 13, fast + rest + 5, 421, 9 * 64 - 40, blocks=(1, 5))
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
