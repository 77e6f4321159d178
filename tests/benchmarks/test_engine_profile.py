"""The arithmetic of the engine's profile: overlapping kernels, groups of kernels."""

import argparse

import pytest

from benchmarks.engine.engine_profile import busy_us, compositions, group_of


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], 0.0),
        ([(0.0, 2.0), (3.0, 4.0)], 3.0),
        ([(0.0, 5.0), (1.0, 2.0), (4.0, 6.0)], 6.0),  # one inside, one overlapping
        ([(4.0, 6.0), (0.0, 5.0)], 6.0),
    ],
)
def test_overlapping_kernels_count_once(intervals, expected):
    assert busy_us(intervals) == expected


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("void nestedfp::cuda::quantize_kernel<8>(...)", "quantise"),
        ("void nestedfp::cuda::gemm_kernel<...>", "gemm"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "gemm"),
        ("void flash::FlashAttnFwdSm90<...>", "attention"),
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "norm, activation, rotary"),
        ("vectorized_elementwise_kernel", "other"),
    ],
)
def test_kernels_are_grouped_by_name(kernel, group):
    assert group_of(kernel) == group


def test_steps_are_given_as_prompt_tokens_and_decodes():
    assert compositions("0+32,8192+0") == [(0, 32), (8192, 0)]


@pytest.mark.parametrize("text", ["", "32", "0+0", "416+32,", "-1+2", "a+b", "1+2+3"])
def test_other_steps_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="PROMPT_TOKENS"):
        compositions(text)
