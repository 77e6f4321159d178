"""What the GEMM benchmark derives from its measurements, without a GPU."""

import pytest

from benchmarks.kernels.gpu_gemm import floor_us, with_derived


def test_one_token_is_bound_by_reading_the_weights():
    assert floor_us(1, 8192, 8192, 2) == pytest.approx(8192 * 8192 * 2 / 3.0e6, rel=1e-3)
    assert floor_us(1, 8192, 8192, 2) == pytest.approx(2 * floor_us(1, 8192, 8192, 1), rel=1e-3)


def test_many_tokens_are_bound_by_arithmetic():
    assert floor_us(4096, 8192, 8192, 2) == pytest.approx(2 * 4096 * 8192 * 8192 / 798e6)
    assert floor_us(4096, 8192, 8192, 1) == pytest.approx(floor_us(4096, 8192, 8192, 2) / 2)


def test_the_library_counts_with_its_faster_call():
    row = with_derived((64, 64, 1), {"scaled_mm_fp8_row": 3.0, "scaled_mm_fp8_tensor": 2.0})
    assert row["scaled_mm_fp8"] == 2.0
    assert set(row) == {"scaled_mm_fp8", "scaled_mm_fp8_row", "scaled_mm_fp8_tensor", "floor_fp16", "floor_fp8"}
