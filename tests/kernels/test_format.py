"""The weight format on all 65,536 FP16 patterns: reference, torch's own E4M3, and the compiled kernels agree.

Run: ``pytest -q tests/kernels/test_format.py``
"""

import pytest
import torch

from nestedfp.format import LIMIT, UPPER_SCALE, join, split, upper_to_float
from nestedfp.kernels import ops
from nestedfp.nested_weight import NestedWeight, NotNested, nest

PATTERNS = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
NESTABLE = PATTERNS.abs() <= LIMIT  # False for NaN


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def test_every_pattern_within_the_limit_survives_the_round_trip():
    weight = PATTERNS[NESTABLE]
    assert weight.numel() == 32_258
    assert same_bits(join(*split(weight)), weight)
    assert same_bits(ops.join(*(plane.view(2, -1) for plane in split(weight))).flatten(), weight)


def test_upper_plane_is_torchs_own_e4m3_of_256_w():
    weight = PATTERNS[NESTABLE]
    upper, _ = split(weight)
    assert same_bits(upper, (weight.float() * UPPER_SCALE).to(torch.float8_e4m3fn).view(torch.uint8))
    assert torch.equal(
        upper_to_float(upper), (weight.float() * UPPER_SCALE).to(torch.float8_e4m3fn).float() / UPPER_SCALE
    )
    assert not upper_to_float(upper).isnan().any()


def test_lower_plane_is_the_low_byte():
    weight = PATTERNS[NESTABLE]
    assert torch.equal(split(weight)[1].int(), weight.view(torch.int16).int() & 0xFF)


def test_every_other_pattern_is_refused():
    with pytest.raises(ValueError, match="got 33278 of 65536 weights beyond it, infinite or NaN"):
        split(PATTERNS)
    for value in (1.7509765625, -1.7509765625, 65504.0, torch.inf, -torch.inf, torch.nan):
        with pytest.raises(ValueError, match="got 1 of 1 weights beyond it"):
            split(torch.tensor([value]).half())


def test_split_names_the_dtype_it_got():
    with pytest.raises(ValueError, match=r"expected float16, got torch\.bfloat16"):
        split(torch.zeros(4, dtype=torch.bfloat16))


def test_compiled_split_equals_the_reference_on_every_pattern():
    weight = PATTERNS.reshape(256, 256)
    upper, lower, counts = ops.split(weight)
    nonfinite = int((~PATTERNS.isfinite()).sum())
    assert counts.tolist() == [(1 << 16) - 32_258 - nonfinite, nonfinite]
    clamped = PATTERNS.clamp(-LIMIT, LIMIT)
    finite = PATTERNS.isfinite()
    expected_upper, expected_lower = split(clamped[finite])
    assert torch.equal(upper.reshape(-1)[finite], expected_upper)
    assert torch.equal(lower.reshape(-1)[finite], expected_lower)


@pytest.mark.parametrize("shape", [(1, 1), (1, 31), (3, 33), (16, 2), (17, 3), (40, 129), (254, 127)])
def test_packed_planes_join_to_the_weight(shape):
    n, k = shape
    every = n * k == 32_258
    weight = PATTERNS[NESTABLE][torch.arange(n * k) if every else torch.randint(32_258, (n * k,))].view(shape)
    packed = ops.pack(*split(weight))
    assert packed[0].shape == packed[1].shape == (-(-n // 16), -(-k // 2) * 32)
    for first, rows in {(0, n), (n // 2, n - n // 2)}:
        found = ops.join_rows(*packed, n, k, first, rows)
        assert torch.equal(found.view(torch.int16), weight[first : first + rows].view(torch.int16))


def test_nest_lists_outliers_so_that_clamped_plus_delta_is_the_weight():
    weight = (torch.randn(300, 400) * 0.1).half()
    beyond = PATTERNS[PATTERNS.isfinite() & ~NESTABLE]
    where = torch.randperm(weight.numel())[:100]
    weight.view(-1)[where] = beyond[torch.randint(beyond.numel(), (100,))]
    nested = nest(weight)
    assert isinstance(nested, NestedWeight)
    assert nested.outliers == 100
    assert nested.outlier_rows is not None
    assert nested.outlier_cols is not None
    assert nested.outlier_deltas is not None
    flat = nested.outlier_rows.long() * 400 + nested.outlier_cols
    assert torch.equal(flat, where.sort().values)
    rebuilt = join(nested.upper, nested.lower).float()
    rebuilt.view(-1)[flat] += nested.outlier_deltas
    assert torch.equal(rebuilt, weight.float())


def test_nest_of_a_clean_weight_has_no_lists():
    nested = nest((torch.randn(8, 8) * 0.1).half())
    assert isinstance(nested, NestedWeight)
    assert nested.outliers == 0
    assert nested.outlier_rows is nested.outlier_cols is nested.outlier_deltas is None


def test_nest_takes_a_transposed_weight():
    weight = (torch.randn(24, 40) * 0.1).half().t()
    nested = nest(weight)
    assert isinstance(nested, NestedWeight)
    assert torch.equal(join(nested.upper, nested.lower), weight)


@pytest.mark.parametrize(("outliers", "nests"), [(10, True), (11, False)])
def test_a_layer_with_more_than_a_thousandth_of_outliers_stays_plain(outliers, nests):
    weight = torch.zeros(100, 100, dtype=torch.float16)
    weight.view(-1)[:outliers] = -2.0
    result = nest(weight)
    assert isinstance(result, NestedWeight) == nests
    if isinstance(result, NotNested):
        assert result.reason == "outliers: 11 of 10000 weights have |w| > 1.75, more than 0.1%"
        assert (result.outliers, result.nonfinite) == (11, 0)


def test_a_layer_with_nan_or_infinity_stays_plain():
    weight = torch.zeros(10, 10, dtype=torch.float16)
    weight[1, 2], weight[3, 4], weight[5, 6] = torch.nan, torch.inf, 2.0
    result = nest(weight)
    assert result == NotNested("nonfinite: 2 of 100 weights are NaN or infinite", outliers=1, nonfinite=2)
