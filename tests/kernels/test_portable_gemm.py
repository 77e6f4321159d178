"""The GEMM for GPUs from compute capability 8.0 on, run here without one: its sources on an emulated grid under sanitizers.

Run: ``pytest -q tests/kernels/test_portable_gemm.py``
"""

import emulated
import pytest
import torch
from gemm_problems import EXACT, FP8, OPERANDS, Problem, every_value, make, relative_error, with_outliers

TILES = 5


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("emulator") / "portable_gemm"
    return emulated.build(path, "portable_gemm.cpp", ["cuda/portable/plan.cpp"], *emulated.SANITIZERS)


def run(program, problem, operands, tile=0, split=0, multiprocessors=4, seed=0):
    """Split 0: tile and split as the product chooses."""
    return emulated.run_gemm(program, problem, operands, tile, split, None, multiprocessors, seed)


def result(program, problem, operands, **how):
    status, errors, out = run(program, problem, operands, **how)
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
    # FP16's rounding of the result: 2^-11 of up to four times the root mean square.
    assert relative_error(out, expected) < 3e-3


@pytest.mark.parametrize("operands", OPERANDS.values(), ids=OPERANDS)
def test_sums_that_are_exact_come_out_bit_for_bit_whatever_the_plan(program, operands):
    problem, expected = make(operands, 20, 130, 264, integers=True)
    for how in ({"multiprocessors": 1}, {"multiprocessors": 30}, {"tile": 1, "split": 2}, {"tile": 4, "split": 1}):
        assert torch.equal(result(program, problem, operands, **how), expected.half()), how


@pytest.mark.parametrize("how", [{"tile": 0}, {"tile": 4}, {"tile": 1, "split": 2}], ids=str)
def test_listed_weights_are_added_before_the_one_rounding(program, how):
    problem, expected = with_outliers()
    assert torch.equal(result(program, problem, EXACT, **how), expected.half())


def test_exact_mode_gives_back_every_value_of_the_format(program):
    from nestedfp.kernels import ops

    weight = every_value()
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
