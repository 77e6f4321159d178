"""How the portable GEMM cuts problems: pure host code, built with the C++ compiler alone. No GPU and no nvcc."""

import ctypes
from collections import Counter

import pytest
from gemm_plans import portable_work

from benchmarks.kernels.gpu_portable import EXACT, FP8, UPPER_FP16, plan
from nestedfp.kernels import cuda_library
from nestedfp.kernels.gpu_kernels import PORTABLE_FROM, is_portable, multiplies_fp8

pytestmark = pytest.mark.usefixtures("host_library")

TILES = ((64, 8), (64, 16), (64, 32), (64, 64), (128, 128))  # kPortableTiles of csrc/cuda/portable/tile.h
OPERANDS = (EXACT, UPPER_FP16, FP8)
A100, L40S = 108, 142  # multiprocessors


@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("split", [1, 3, 16])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 64, 64), (17, 4999, 520), (3000, 300, 2112), (9000, 130, 1)])
def test_every_step_of_every_tile_is_computed_once(operands, split, m, n, k):
    steps = -(-k // (128 if operands == FP8 else 64))
    for tile, (rows, tokens) in enumerate(TILES):
        computed = Counter()
        for row, token, first, last in portable_work(operands, m, n, k, tile, split):
            computed.update((row, token, step) for step in range(first, last))
        wanted = -(-n // rows) * -(-m // tokens) * steps
        assert len(computed) == computed.total() == wanted
        assert all(row * rows < n and token * tokens < m for row, token, _ in computed)


def test_python_and_cpp_say_the_same_of_every_gpu():
    traits = (ctypes.c_int * 3)()
    for capability in ((7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)):
        cuda_library.library().nestedfp_gpu_traits(capability[0] * 10 + capability[1], traits)
        expected = (capability >= PORTABLE_FROM, is_portable(capability), multiplies_fp8(capability))
        assert tuple(map(bool, traits)) == expected, capability


def test_only_a_split_needs_a_workspace_a_float_for_each_sum_of_each_part():
    workspace = cuda_library.library().nestedfp_portable_workspace_bytes
    for tile, (rows, tokens) in enumerate(TILES):
        assert workspace(EXACT, 70, 130, 4096, tile, 1) == 0
        tiles = -(-130 // rows) * -(-70 // tokens)
        assert workspace(EXACT, 70, 130, 4096, tile, 3) == tiles * rows * tokens * 3 * 4


@pytest.mark.parametrize("sms", [A100, L40S])
@pytest.mark.parametrize("operands", OPERANDS)
def test_tokens_decide_the_tile_and_small_layers_are_split(operands, sms):
    for n, k in ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)):
        tile, split = plan(operands, 1, n, k, sms)
        assert TILES[tile][1] == 8  # one token needs no wider tile
        assert -(-n // 64) * split >= sms / 2  # half of them can ask for all that the memory gives
        tile, _ = plan(operands, 4096, n, k, sms)
        assert TILES[tile] == (128, 128)


def test_tiles_of_enough_blocks_are_not_split():
    assert plan(EXACT, 4096, 28672, 4096, A100)[1] == 1
    assert plan(EXACT, 1, 150_000, 256, A100)[1] == 1


def test_short_k_is_not_split():
    assert plan(EXACT, 1, 64, 256, A100)[1] == 1  # four steps
