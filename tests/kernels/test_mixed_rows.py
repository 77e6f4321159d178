"""Steps of exact and fast rows on the CPU: every row gets, bit for bit, what a step of its own precision gives it.

Run: ``pytest -q tests/kernels/test_mixed_rows.py``
"""

import pytest
import torch

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import NestedWeight, nest

pytestmark = pytest.mark.usefixtures("fp16_mode")

N, K = 72, 128


def layer(outliers=0):
    """A layer's planes, bias and outlier lists."""
    nested = nest((torch.randn(N, K) * 0.1).clamp(-1.75, 1.75).half())
    assert isinstance(nested, NestedWeight)
    lists = (None, None, None)
    if outliers:
        at = torch.randperm(N * K)[:outliers].sort().values
        lists = (at // K).int(), (at % K).int(), torch.randn(outliers) * 3
    return *ops.pack(nested.upper, nested.lower), torch.randn(N).half(), *lists


def by_mode(mask, run):
    """What ``run`` gives in a mixed step, and row by row in a step of each row's precision."""
    expected = []
    for mode in (Mode.FP16, Mode.FP8):
        ops.set_mode(mode)
        expected.append(run())
    ops.set_mixed(mask)
    assert ops.exact_rows() != 0
    assert ops.get_mode() is Mode.FP8
    found = run()
    ops.set_mode(Mode.FP16)
    assert ops.exact_rows() == 0
    flat = [each.reshape(len(mask), -1) for each in (found, *expected)]
    return flat[0], torch.where(mask[:, None], flat[1], flat[2]), flat[1:]


MASKS = {
    "exact first": [True] * 3 + [False] * 40,
    "exact last": [False] * 5 + [True],
    "in turns": [True, False] * 30,
    "one of each": [False, True],
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("quantize", "outliers"), [(False, 0), (True, 0), (True, 9)])
def test_a_row_of_a_mixed_step_has_the_bits_of_a_step_of_its_precision(mask, dtype, quantize, outliers):
    mask, operands = torch.tensor(mask), layer(outliers)
    x = torch.randn(len(mask), K).to(dtype)
    found, expected, both = by_mode(mask, lambda: ops.linear(x, *operands, N, K, quantize))
    assert torch.equal(found, expected)
    assert not torch.equal(*both)


def test_rows_of_several_axes_and_a_layer_that_reads_a_carrier():
    mask, (upper, lower, bias, *_) = torch.tensor([False, True, True] * 4), layer()
    x, weight = torch.randn(4, 3, K).half(), torch.randn(K).half()

    def fused():
        carrier, scales, total = ops.add_rms_norm(x, x, weight, 1e-5)
        assert torch.equal(total, x + x)
        return ops.linear_carried(carrier, scales, upper, lower, bias, N, K)

    found, expected, _ = by_mode(mask, fused)
    assert torch.equal(found, expected)


def test_an_operator_with_other_rows_than_the_step_runs_exact():
    operands, x = layer(), torch.randn(5, K).half()
    exact = ops.linear(x, *operands, N, K, True)
    for rows in (4, 6, 50):
        ops.set_mixed(torch.arange(rows) < 2)
        assert torch.equal(ops.linear(x, *operands, N, K, True), exact)


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (torch.ones(3, dtype=torch.bool), "got 3 exact ones of"),
        (torch.zeros(3, dtype=torch.bool), "got 0 exact ones of"),
        (torch.zeros(0, dtype=torch.bool), "got 0 exact ones of"),
        (torch.tensor([[True, False]]), r"expected is_exact of shape \[rows\]"),
        (torch.tensor([1, 0]), "of dtype Bool, got Long"),
    ],
)
def test_a_mask_that_no_mixed_step_has_changes_nothing(mask, error):
    with pytest.raises(RuntimeError, match=error):
        ops.set_mixed(mask)
    assert ops.exact_rows() == 0
