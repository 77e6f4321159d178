"""What the GEMM benchmark derives from its measurements, without a GPU."""

import pytest

from benchmarks.engine.engine_shapes import rank_layers
from benchmarks.kernels.gpu_gemm import floor_us
from benchmarks.kernels.gpu_gemm_random import step_sums


def test_one_token_is_bound_by_reading_the_weights():
    assert floor_us(1, 8192, 8192, 2) == pytest.approx(8192 * 8192 * 2 / 3.0e6, rel=1e-3)
    assert floor_us(1, 8192, 8192, 2) == pytest.approx(2 * floor_us(1, 8192, 8192, 1), rel=1e-3)


def test_many_tokens_are_bound_by_arithmetic():
    assert floor_us(4096, 8192, 8192, 2) == pytest.approx(2 * 4096 * 8192 * 8192 / 798e6)
    assert floor_us(4096, 8192, 8192, 1) == pytest.approx(floor_us(4096, 8192, 8192, 2) / 2)


def test_ranks_share_a_model_s_layers_as_vllm_splits_them():
    whole = {"qkv": (10240, 8192), "o": (8192, 8192), "gate_up": (57344, 8192), "down": (8192, 28672)}
    assert rank_layers("llama-70b", 1) == whole
    quarter = {"qkv": (2560, 8192), "o": (8192, 2048), "gate_up": (14336, 8192), "down": (8192, 7168)}
    assert rank_layers("llama-70b", 4) == quarter
    with pytest.raises(ValueError, match=r"the 8 KV heads.*got 3"):
        rank_layers("llama-70b", 3)


def test_a_step_s_products_are_those_of_all_its_layers():
    """Two layers of one shape are two products, timed once."""
    us = {"cublas_fp16": 10.0, "nestedfp_fp8": 4.0, "floor_fp8": 1.0}
    rows = [(name, n, 64, m, time * m * n) for name, time in us.items() for n in (1, 2) for m in (8, 1)]
    head, one, eight = step_sums(rows, [(1, 64), (2, 64), (1, 64)], 50)
    assert head.split() == ["tokens", "cublas_fp16", "nestedfp_fp8"]
    assert one.split() == ["1", "2.00", "0.80"]  # 4 times 10 us and 4 us, 50 times
    assert eight.split() == ["8", "16.00", "6.40"]
