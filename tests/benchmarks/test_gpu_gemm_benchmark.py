"""What the GEMM benchmark derives from its measurements, without a GPU."""

import pytest

from benchmarks.kernels.gpu_gemm import floor_us


def test_one_token_is_bound_by_reading_the_weights():
    assert floor_us(1, 8192, 8192, 2) == pytest.approx(8192 * 8192 * 2 / 3.0e6, rel=1e-3)
    assert floor_us(1, 8192, 8192, 2) == pytest.approx(2 * floor_us(1, 8192, 8192, 1), rel=1e-3)


def test_many_tokens_are_bound_by_arithmetic():
    assert floor_us(4096, 8192, 8192, 2) == pytest.approx(2 * 4096 * 8192 * 8192 / 798e6)
    assert floor_us(4096, 8192, 8192, 1) == pytest.approx(floor_us(4096, 8192, 8192, 2) / 2)
