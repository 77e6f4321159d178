"""The GEMM for Hopper, run here without one: its sources, host and device, on an emulated grid.

Run: ``pytest -q tests/kernels/test_hopper_gemm.py``
"""

import shutil

import pytest
import torch
from gemm_library import CSRC
from gemm_problems import EXACT, FP8, OPERANDS, UPPER_FP16, Problem, every_value, make, relative_error, with_outliers
from hopper_emulator import NO_CONFIG, TILES, run

STREAM_K = 0


def find(arguments):
    """A tile's number."""
    return next(number for number, tile in enumerate(TILES) if tile.arguments == arguments)


def result(build, problem, tile, **how):
    status, errors, out = run(build.program, problem, tile, **how)
    assert status == 0, errors[:3000]
    return out


def problem_for(tile, seed=0, steps=9, **how):
    """Two tiles of tokens and of rows with tails in all three dimensions, and ``steps`` stages of K."""
    tile = TILES[tile]
    n, k = tile.rows + 37, tile.step * (steps - 1) + 24
    return make(FP8 if tile.is_fp8 else EXACT, tile.tokens + 5, n, k, seed=seed, **how)


@pytest.mark.parametrize("tile", range(len(TILES)), ids=[tile.arguments for tile in TILES])
def test_every_tile_computes_the_product_to_its_rounding(build, tile):
    problem, expected = problem_for(tile, seed=tile)
    slots = TILES[tile].blocks
    ways = [{}, {"split": STREAM_K, "workspace": True, "multiprocessors": 6 // slots}]
    if TILES[tile].multicast == 1:
        ways.append({"split": 2 + tile % 3, "multiprocessors": 16})
    for seed, how in enumerate(ways):
        # FP16's rounding of the result: 2^-11 of up to four times the root mean square.
        assert relative_error(result(build, problem, tile, seed=seed, **how), expected) < 3e-3, how


WAYS = {
    "whole": {},
    "whole, few blocks": {"multiprocessors": 2},
    "cluster of two": {"split": 2, "multiprocessors": 8},
    "cluster of three": {"split": 3, "multiprocessors": 12},
    "cluster of four": {"split": 4, "multiprocessors": 16},
    "tail in a cluster": {"split": 2, "tail": True, "multiprocessors": 5},
    "workspace": {"split": 2, "workspace": True, "multiprocessors": 24},
    "workspace, many parts": {"split": 4, "workspace": True, "multiprocessors": 48},
    "Stream-K": {"split": STREAM_K, "workspace": True, "multiprocessors": 8},
    "Stream-K of the tail": {"split": STREAM_K, "workspace": True, "tail": True, "multiprocessors": 5},
    "Stream-K of the tail, more blocks": {"split": STREAM_K, "workspace": True, "tail": True, "multiprocessors": 8},
}
# One of each way through the kernel: two K slices, whose last arriver reduces; decoding between wgmmas and in one go;
# two wgmmas for a tile's tokens; small staging buffers; three warpgroups that take turns, and that do not; activations
# for two blocks at once.
KINDS = {
    "k_slices": find("kFp16, 1, 2, 32, 2, 1"),
    "interleaved": find("kFp16, 2, 1, 96, 1, 1"),
    "batched": find("kFp16, 2, 1, 224, 1, 1"),
    "wide": find("kFp16, 2, 1, 288, 1, 1"),
    "ping_pong": find("kFp16, 3, 1, 128, 1, 1"),
    "three_warpgroups": find("kFp16, 3, 1, 192, 1, 1"),
    "multicast": find("kFp16, 2, 1, 192, 1, 2"),
    "wide_multicast": find("kFp16, 2, 1, 288, 1, 2"),
    "fp8_k_slices": find("kFp8, 1, 2, 16, 2, 1"),
    "fp8": find("kFp8, 2, 1, 160, 1, 1"),
    "fp8_wide": find("kFp8, 2, 1, 320, 1, 1"),
    "fp8_multicast": find("kFp8, 2, 1, 128, 1, 2"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sums_that_are_exact_come_out_bit_for_bit_whatever_the_config(build, kind):
    tile = TILES[KINDS[kind]]
    m, n, k = tile.tokens + 3, 2 * tile.rows + 40, 16 * tile.step - 8
    problem, expected = make(FP8 if tile.is_fp8 else EXACT, m, n, k, integers=True)
    ran = 0
    for seed, (way, how) in enumerate(WAYS.items()):
        status, errors, out = run(build.program, problem, KINDS[kind], seed=seed, **how)
        if status == NO_CONFIG:
            continue
        assert status == 0, (way, errors[:3000])
        assert torch.equal(out, expected.half()), way
        ran += 1
    assert ran >= 6


@pytest.mark.parametrize("seed", range(3))
def test_a_split_sum_does_not_depend_on_the_order_of_anything(build, seed):
    tile = KINDS["interleaved"]
    problem, _ = problem_for(tile, steps=14)
    how = {"split": STREAM_K, "workspace": True, "multiprocessors": 15}
    assert torch.equal(result(build, problem, tile, seed=seed, **how), result(build, problem, tile, seed=99, **how))


@pytest.mark.parametrize("kind", [kind for kind, tile in KINDS.items() if not TILES[tile].is_fp8])
def test_exact_mode_gives_back_every_value_of_the_format(build, kind):
    from nestedfp.kernels import ops

    weight = every_value()
    upper, lower, _ = ops.split(weight)
    assert torch.equal(result(build, Problem(upper, lower, x=torch.eye(254).half()), KINDS[kind]), weight.T)


def test_a_neutral_lower_plane_leaves_the_fp8_weights(build):
    problem, expected = make(UPPER_FP16, 40, 130, 300)
    assert relative_error(result(build, problem, KINDS["interleaved"], neutral=True), expected) < 3e-3


@pytest.mark.parametrize("kind", ["k_slices", "interleaved", "wide", "multicast"])
def test_listed_weights_are_added_before_the_one_rounding(build, kind):
    problem, expected = with_outliers()
    for how in ({}, {"split": STREAM_K, "workspace": True, "multiprocessors": 6}):
        assert torch.equal(result(build, problem, KINDS[kind], **how), expected.half()), how


@pytest.mark.parametrize("operands", OPERANDS.values(), ids=OPERANDS)
def test_rows_of_an_odd_number_and_no_bias(build, operands):
    problem, expected = make(operands, 9, 101, 72, bias=False)
    tile = KINDS["fp8" if operands == FP8 else "batched"]
    assert relative_error(result(build, problem, tile, neutral=operands == UPPER_FP16), expected) < 3e-3


SPLIT = {"split": 2, "workspace": True, "multiprocessors": 20}
# One for each kind of hand-over between threads, warpgroups, blocks and kernels.
FAULTS = {
    "weights are released before all lanes have read them": (
        "consumer.cuh",
        "        const uint32_t empty = weights_empty_after(raw);\n        __syncwarp();",
        "        const uint32_t empty = weights_empty_after(raw);",
        "three_warpgroups",
        {},
    ),
    "fragments are overwritten under the wgmmas that read them": (
        "consumer.cuh",
        "wgmma_wait<2>();",
        "wgmma_wait<3>();",
        "interleaved",
        {},
    ),
    "parts are added before they are there": (
        "workspace_parts.cuh",
        "while (load_acquire(semaphore) != parts - 1) {",
        "while (load_acquire(semaphore) < parts - 2) {",
        "batched",
        SPLIT,
    ),
    "a block loads into one whose barriers are not there yet": (
        "gemm_sm90.cuh",
        "    if constexpr (kIsMulticast) {\n        cluster_sync_relaxed();\n    } else {",
        "    {",
        "multicast",
        {},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_emulator_finds_that(build, tmp_path, name):
    header, right, wrong, kind, how = FAULTS[name]
    csrc = tmp_path / "csrc"
    shutil.copytree(CSRC, csrc)
    source = csrc / "cuda/gemm" / header
    assert source.read_text().count(right) == 1
    source.write_text(source.read_text().replace(right, wrong))
    tile = KINDS[kind]
    program = build.with_tile("".join(filter(str.isalnum, name)), tile, csrc)
    problem, expected = problem_for(tile, integers=True, steps=16)
    assert torch.equal(result(build, problem, tile, **how), expected.half())  # the sound kernel, by the same config
    for seed in range(12):
        status, _, out = run(program, problem, tile, seed=seed, **how)
        if status != 0 or not torch.equal(out, expected.half()):
            return
    pytest.fail("twelve seeds show nothing")
