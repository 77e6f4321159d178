"""The arithmetic of the engine's profile: overlapping kernels, groups of kernels."""

import argparse

import pytest

from benchmarks.engine.engine_profile import LAST_KERNEL, Kernel, busy_us, by_step, compositions, group_of, table_of


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


def test_kernels_belong_to_the_step_whose_tokens_are_sampled_after_them():
    kernels = [Kernel("gemm", 10.0 * i, 10.0 * i + 4) for i in range(4)]
    sampled = [Kernel(LAST_KERNEL, 15.0, 16.0), Kernel(LAST_KERNEL, 35.0, 36.0)]
    assert [[kernel.began_us for kernel in step] for step in by_step([*sampled, *kernels[:0:-1], kernels[0]])] == [
        [0.0, 10.0, 15.0],
        [20.0, 30.0, 35.0],
    ]
    assert by_step(kernels) == []  # a step that was cut off


def test_a_table_is_of_the_mean_step_the_longest_kernel_first():
    steps = [
        [Kernel("norm", 0.0, 1.0), Kernel("gemm", 0.5, 6.0)],
        [Kernel("gemm", 10.0, 16.0), Kernel("gemm", 20.0, 20.5)],
    ]
    assert table_of(steps, 0.011) == {
        "(step)": (1, 11.0),
        "(busy)": (1, 6.25),
        "gemm": (1.5, 6.0),
        "norm": (0.5, 0.5),
    }
    assert list(table_of(steps, 0.011))[2:] == ["gemm", "norm"]
