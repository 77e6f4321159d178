"""The linear operator on the CPU: right in both modes against FP64, and the same bits however it is run.

Run: ``pytest -q tests/kernels/test_cpu_linear.py``
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantizer_reference import quantize_per_token

from nestedfp.format import upper_to_float
from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import NestedWeight, nest

ROOT = Path(__file__).parents[2]
EPSILON = {torch.float16: 2.0**-11, torch.float32: 2.0**-24}


@pytest.fixture(autouse=True)
def restore_mode_and_threads():
    threads = torch.get_num_threads()
    ops.set_mode(Mode.FP16)
    yield
    ops.set_mode(Mode.FP16)
    torch.set_num_threads(threads)


class Layer:
    """A random layer: packed planes, and the weights of each mode in FP64."""

    def __init__(self, n, k, outliers=0, scale=0.1):
        weight = (torch.randn(n, k) * scale).clamp(-1.75, 1.75).half()
        self.n, self.k = n, k
        self.nested = nest(weight)
        assert isinstance(self.nested, NestedWeight)
        self.planes = ops.pack(self.nested.upper, self.nested.lower)
        self.weights = {Mode.FP16: weight.double(), Mode.FP8: upper_to_float(self.nested.upper).double()}
        self.lists = (None, None, None)
        if outliers:
            where = torch.randperm(n * k)[:outliers].sort().values
            deltas = torch.randn(outliers) * 3
            self.lists = ((where // k).int(), (where % k).int(), deltas)
            for dense in self.weights.values():
                dense.view(-1)[where] += deltas.double()

    def __call__(self, x, bias=None, quantize=False):
        return ops.linear(x, *self.planes, bias, *self.lists, self.n, self.k, quantize)


def assert_close(out, x, weight, bias=None):
    """Compare with FP64 within the error of an FP32 sum and one rounding."""
    exact = x.double() @ weight.T
    terms = x.double().abs() @ weight.abs().T
    if bias is not None:
        exact = exact + bias.double()
        terms = terms + bias.double().abs()
    sum_error = terms * 2.0**-24 * (8 + x.shape[-1] ** 0.5)
    rounding = (exact.abs() + sum_error) * EPSILON[out.dtype] + 2.0**-25
    worst = ((out.double() - exact).abs() - sum_error - rounding).max()
    assert worst <= 0, f"off by {worst:.3g} more than allowed"


@settings(max_examples=40)
@given(
    n=st.integers(1, 140),
    k=st.one_of(st.integers(1, 70), st.integers(500, 540)),
    m=st.one_of(st.integers(1, 15), st.sampled_from([24, 25, 61, 200])),
    dtype=st.sampled_from(list(EPSILON)),
    mode=st.sampled_from(Mode),
    with_bias=st.booleans(),
    outliers=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_linear_agrees_with_fp64(n, k, m, dtype, mode, with_bias, outliers, seed):
    torch.manual_seed(seed)
    layer = Layer(n, k, outliers=min(outliers, n * k))
    ops.set_mode(mode)
    x = torch.randn(m, k).to(dtype)
    bias = torch.randn(n).to(dtype) if with_bias else None
    out = layer(x, bias)
    assert out.shape == (m, n)
    assert out.dtype == dtype
    assert_close(out, x, layer.weights[mode], bias)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("shape", [(0, 64), (64,), (1, 64), (3, 0, 64), (2, 3, 5, 64)])
def test_leading_dimensions_are_kept(shape, mode):
    layer = Layer(48, 64)
    ops.set_mode(mode)
    x = torch.randn(shape)
    out = layer(x)
    assert out.shape == (*shape[:-1], 48)
    if out.numel():
        assert_close(out.reshape(-1, 48), x.reshape(-1, 64), layer.weights[mode])


@pytest.mark.parametrize("mode", Mode)
def test_long_prefill_in_several_passes(mode):
    layer = Layer(33, 4100)
    ops.set_mode(mode)
    x = torch.randn(1200, 4100).half()
    assert_close(layer(x), x, layer.weights[mode])


def test_non_contiguous_x_and_bias():
    layer = Layer(48, 64)
    x = torch.randn(64, 10).t()
    bias = torch.randn(96)[::2]
    assert torch.equal(layer(x, bias), layer(x.contiguous(), bias.contiguous()))


@pytest.mark.parametrize("mode", Mode)
def test_a_row_does_not_depend_on_its_batch_or_on_the_threads(mode):
    layer = Layer(300, 700, outliers=5)
    ops.set_mode(mode)
    x = torch.randn(230, 700).half()
    bias = torch.randn(300)
    whole = layer(x, bias)
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        for rows in (1, 2, 3, 5, 6, 7, 8, 13, 64):
            assert torch.equal(layer(x[:rows], bias), whole[:rows]), f"{threads=} {rows=}"
        assert torch.equal(layer(x, bias), whole), f"{threads=}"


@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_flushing_denormals_changes_nothing(tokens):
    layer = Layer(64, 64, scale=2e-5)  # mostly FP16 subnormals
    x = (torch.randn(tokens, 64) * 1e-3).half()
    expected = {}
    for mode in Mode:
        ops.set_mode(mode)
        expected[mode] = layer(x)
        assert expected[mode].count_nonzero() > 0
    assert torch.set_flush_denormal(True)
    try:
        for mode in Mode:
            ops.set_mode(mode)
            assert torch.equal(layer(x), expected[mode])
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", list(EPSILON))
@pytest.mark.parametrize("tokens", [1, 5, 20])
def test_quantised_activations_are_the_reference_bit_for_bit(dtype, tokens):
    k = 200
    upper, lower, _ = ops.split(torch.eye(k).half())  # the output is the quantised row times its scale
    ops.set_mode(Mode.FP8)
    x = torch.randn(tokens, k) * torch.logspace(-12, 3, k)
    x[0, :50] = 0
    x = x.to(dtype)
    codes, scale = quantize_per_token(x)
    out = ops.linear(x, *ops.pack(upper, lower), None, None, None, None, k, k, True)
    assert torch.equal(out, (codes.float() * scale).to(dtype))


def test_every_rounding_case_of_the_activation_quantiser():
    """All FP16 magnitudes up to 448 in rows whose scale is exactly 1: halfway cases, subnormals, zeros."""
    values = torch.arange(1 << 15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    values = values[values <= 448].float()
    values = torch.cat([values, -values, torch.full((-2 * values.numel() % 255,), 0.0)]).reshape(-1, 255)
    x = torch.cat([values, torch.full((len(values), 1), 448.0)], dim=1)
    upper, lower, _ = ops.split(torch.eye(256).half())
    ops.set_mode(Mode.FP8)
    out = ops.linear(x, *ops.pack(upper, lower), None, None, None, None, 256, 256, True)
    assert torch.equal(out, x.to(torch.float8_e4m3fn).float())


def test_quantised_linear_agrees_with_fp64_and_leaves_outliers_unquantised():
    layer = Layer(70, 300)
    x = torch.randn(9, 300).half()
    ops.set_mode(Mode.FP8)
    codes, scale = quantize_per_token(x)
    quantised = codes.double() * scale.double()
    assert_close(layer(x, quantize=True), quantised, layer.weights[Mode.FP8])
    layer.lists = (torch.tensor([5], dtype=torch.int32), torch.tensor([7], dtype=torch.int32), torch.tensor([1000.0]))
    exact = quantised @ layer.weights[Mode.FP8][5] + 1000 * x[:, 7].double()
    torch.testing.assert_close(layer(x, quantize=True)[:, 5].double(), exact, rtol=2.0**-10, atol=1e-3)


def test_fp16_mode_ignores_quantize_activations():
    layer = Layer(32, 32)
    x = torch.randn(4, 32).half()
    assert torch.equal(layer(x, quantize=True), layer(x))


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_nan_or_infinity_in_a_token_reaches_its_outputs_and_no_other(poison, quantize):
    layer = Layer(64, 48)
    ops.set_mode(Mode.FP8)
    x = torch.randn(8, 48)
    clean = layer(x, quantize=quantize)
    x[3, 17] = poison
    out = layer(x, quantize=quantize)
    assert not out[3].isfinite().any()
    keep = torch.arange(8) != 3
    assert torch.equal(out[keep], clean[keep])


def test_half_outputs_round_to_nearest_and_overflow_to_infinity():
    upper, lower, _ = ops.split(torch.ones(1, 1).half())
    planes = ops.pack(upper, lower)
    values = torch.cat(
        [torch.randn(5000) * 10.0 ** torch.randint(-9, 6, (5000,)), torch.tensor([65519.9, 65520.0, -7e4])]
    )
    out = ops.linear(values[:, None], *planes, None, None, None, None, 1, 1, False)
    assert torch.equal(out[:, 0], values)
    zero = torch.zeros(1, 1, dtype=torch.float16)
    rounded = torch.cat([ops.linear(zero, *planes, b, *[None] * 3, 1, 1, False) for b in values[:, None]])
    assert torch.equal(rounded[:, 0], values.half())


def digest_of(isa):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "cpu_digest.py")],
        env=os.environ | {"NESTEDFP_CPU_ISA": isa, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["isa"] == isa
    return result["digests"]


@pytest.fixture(scope="module")
def scalar_digests():
    return digest_of("scalar")


@pytest.mark.slow
@pytest.mark.skipif(ops.cpu_isa() == "scalar", reason="the processor has no AVX2")
def test_avx2_gives_the_bits_of_the_scalar_loops(scalar_digests):
    assert digest_of("avx2") == scalar_digests
