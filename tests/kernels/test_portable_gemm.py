"""The GEMM for GPUs from compute capability 8.0 on, run here without one: its sources on an emulated grid under sanitizers.

Run: ``pytest -q tests/kernels/test_portable_gemm.py``
"""

import shutil

import portable_emulator
import pytest
import torch
from emulated import SANITIZERS
from gemm_library import CSRC
from portable_emulator import EXACT, FP8, UPPER_FP16, Problem

TILES = 5
OPERANDS = {"exact": EXACT, "upper_fp16": UPPER_FP16, "fp8": FP8}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("emulator") / "portable_gemm"
    return portable_emulator.build(path, *SANITIZERS)


def make(operands, m, n, k, seed=0, bias=True, integers=False):
    """A problem and its result in double precision. With ``integers`` every sum is exact, in whatever order."""
    from nestedfp.format import upper_to_float
    from nestedfp.kernels import ops
    from nestedfp.kernels.activations import quantize_per_token

    generator = torch.Generator().manual_seed(seed)
    if integers:  # steps of 1/64 up to 3/64: both planes hold them exactly, whatever they are
        weight = torch.randint(-3, 4, (n, k), generator=generator) / 64
        x = torch.randint(-4, 5, (m, k), generator=generator).float()
    else:
        weight, x = torch.randn(n, k, generator=generator) * 0.05, torch.randn(m, k, generator=generator)
    weight, x = weight.half(), x.half()
    upper, lower, _ = ops.split(weight)
    add = torch.randint(-8, 9, (n,), generator=generator).half() if bias else None
    if operands == FP8:
        codes, scale = quantize_per_token(x)
        if integers:
            codes, scale = x.to(torch.float8_e4m3fn), torch.ones(m, 1)
        problem = Problem(upper, lower, codes=codes.view(torch.uint8), scale=scale, bias=add)
        expected = codes.double() * scale.double() @ upper_to_float(upper).double().T
    else:
        problem = Problem(upper, lower, x=x, bias=add)
        stored = weight if operands == EXACT else upper_to_float(upper)
        expected = x.double() @ stored.double().T
    return problem, expected + add.double() if bias else expected


def result(program, problem, operands, **how):
    status, errors, out = problem.run(program, operands, **how)
    assert status == 0, errors[:3000]
    return out


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("tile", range(TILES))
@pytest.mark.parametrize("operands", OPERANDS.values(), ids=OPERANDS)
def test_every_tile_and_split_computes_the_product_to_its_rounding(program, operands, tile, split):
    # Tails in all three dimensions: rows of no whole block, K of no whole chunk, and tokens of no whole tile.
    m = (3, 13, 33, 70, 130)[tile]
    problem, expected = make(operands, m, 67, 205 if split == 1 else 461, seed=tile)
    out = result(program, problem, operands, tile=tile, split=split)
    error = (out.double() - expected).abs().max() / expected.square().mean().sqrt()
    assert error < 3e-3  # FP16's rounding of the result: 2^-11 of up to four times the root mean square


@pytest.mark.parametrize("operands", OPERANDS.values(), ids=OPERANDS)
def test_sums_that_are_exact_come_out_bit_for_bit_whatever_the_plan(program, operands):
    problem, expected = make(operands, 20, 130, 264, integers=True)
    for how in ({"multiprocessors": 1}, {"multiprocessors": 30}, {"tile": 1, "split": 2}, {"tile": 4, "split": 1}):
        assert torch.equal(result(program, problem, operands, **how), expected.half()), how


def test_exact_mode_gives_back_every_value_of_the_format(program):
    from nestedfp.kernels import ops

    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    every = bits.view(torch.float16)
    every = every[every.abs() <= 1.75]
    assert every.numel() == 32258
    weight = every[torch.randperm(32258, generator=torch.Generator().manual_seed(1))].view(127, 254)
    upper, lower, _ = ops.split(weight)
    one_hot = torch.eye(254).half()
    out = result(program, Problem(upper, lower, x=one_hot), EXACT)
    assert torch.equal(out, weight.T)


def test_order_of_threads_and_copies_changes_no_bit(program):
    problem, _ = make(EXACT, 20, 64, 520, seed=3)
    runs = [result(program, problem, EXACT, tile=2, split=2, seed=seed) for seed in range(4)]
    assert all(torch.equal(run, runs[0]) for run in runs)


def test_a_token_that_is_not_finite_spoils_no_other(program):
    problem, expected = make(FP8, 12, 64, 128)
    codes, scale = problem.codes.clone(), problem.scale.clone()
    codes[5], scale[5] = 0x7F, torch.nan  # as the quantiser leaves a row with a NaN or an infinity
    out = result(program, Problem(problem.upper, problem.lower, codes=codes, scale=scale, bias=problem.bias), FP8)
    others = [row for row in range(12) if row != 5]
    assert out[5].isnan().all()
    assert (out[others].double() - expected[others]).abs().max() < 1e-2


MUTATIONS = {
    "no barrier between a stage's last reader and its next filling": (
        "sync_block();  // the stage is there for all threads",
        "// the stage is there for all threads",
    ),
    "a stage is read one copy group early": ("cp_async_wait<kStages - 2>()", "cp_async_wait<kStages - 1>()"),
    "the stage that is being read is filled": ("slot == 0 ? kStages - 1 : slot - 1;", "slot;"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_emulator_finds(tmp_path, name):
    csrc = tmp_path / "csrc"
    shutil.copytree(CSRC, csrc)
    kernel = csrc / "cuda/portable/gemm.cuh"
    right, wrong = MUTATIONS[name]
    assert kernel.read_text().count(right) == 1
    kernel.write_text(kernel.read_text().replace(right, wrong))
    program = portable_emulator.build(tmp_path / "broken", csrc=csrc)
    problem, expected = make(EXACT, 16, 64, 900, integers=True)
    outcomes = [problem.run(program, EXACT, tile=1, split=1, seed=seed) for seed in range(4)]
    assert any(status != 0 or not torch.equal(out, expected.half()) for status, _, out in outcomes)
