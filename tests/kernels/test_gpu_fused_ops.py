"""Norms and activations with the quantiser in them on CUDA tensors: FP16 results, codes, scales, and the layer that reads them.

Run: ``pytest -q -m gpu tests/kernels/test_gpu_fused_ops.py``
"""

import pytest
import torch
from quantizer_reference import quantize_per_token

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import nest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper_operators", "fp16_mode")]

EPSILON = 1e-5
# Widths of models, and those at which the kernels change the number of columns that a thread holds.
NORM_COLUMNS = [64, 256, 4096, 5120, 8192, 16384]
GATED_COLUMNS = [64, 896, 14336, 16448, 32768, 40960, 81920]
TOKENS = [1, 7, 256, 257, 600]


def run(operator, mode_name, *arguments):
    """The results of an operator in a mode, synchronised."""
    ops.set_mode(Mode[mode_name])
    found = getattr(ops, operator)(*arguments)
    torch.cuda.synchronize()
    return found


def quantised(x):
    """Codes in the K order of the packed upper plane, and scales, as nestedfp/kernels/activations.py defines them."""
    codes, scale = quantize_per_token(x.cpu())
    columns = torch.arange(64)
    j, t, c = columns // 16, columns // 2 % 4, columns // 8 % 2 + columns % 2 * 2  # csrc/cuda/kernels/layout.h
    packed = torch.empty(x.shape[0], x.shape[1] // 64, 64, dtype=torch.uint8)
    packed[:, :, 16 * t + 4 * j + c] = codes.view(torch.uint8).view(packed.shape)
    return packed.view(x.shape), scale.flatten()


def check_codes(halves, carrier, scales):
    """Compare an FP8 carrier with what the quantiser makes of the FP16 result."""
    codes = carrier.view(torch.uint8).flatten()[: halves.numel()].view(halves.shape)
    expected_codes, expected_scales = quantised(halves)
    assert torch.equal(scales.cpu(), expected_scales)
    assert torch.equal(codes.cpu(), expected_codes)


def assert_close(actual, expected):
    """Equal but for sums in another order: a rounding to FP16 either way, before and after the weight."""
    torch.testing.assert_close(actual.cpu(), expected, atol=1e-6, rtol=2.5e-3)
    assert (actual.cpu() != expected).float().mean() < 0.02


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("columns", NORM_COLUMNS)
@pytest.mark.parametrize("adds", [False, True])
def test_norms_agree_with_the_cpu_and_their_codes_are_the_quantisers(columns, tokens, adds):
    x, residual = torch.randn(tokens, columns).half() * 3, torch.randn(tokens, columns).half()
    weight = torch.randn(columns).half()
    name, tensors = ("add_rms_norm", (x, residual, weight)) if adds else ("rms_norm", (x, weight))
    expected = run(name, "FP16", *tensors, EPSILON)
    on_gpu = [tensor.cuda() for tensor in tensors]
    before = [tensor.clone() for tensor in on_gpu]
    halves, _, *total = run(name, "FP16", *on_gpu, EPSILON)
    assert_close(halves, expected[0])
    carrier, scales, *total_fp8 = run(name, "FP8", *on_gpu, EPSILON)
    check_codes(halves, carrier, scales)
    for found in (*total, *total_fp8):
        assert torch.equal(found.cpu(), expected[2])
    assert all(torch.equal(now, then) for now, then in zip(on_gpu, before, strict=True))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("columns", GATED_COLUMNS)
def test_silu_agrees_with_the_cpu_and_its_codes_are_the_quantisers(columns, tokens):
    x = torch.randn(tokens, 2 * columns).half() * 2
    expected, _ = run("silu_and_mul", "FP16", x)
    halves, _ = run("silu_and_mul", "FP16", x.cuda())
    assert_close(halves, expected)
    check_codes(halves, *run("silu_and_mul", "FP8", x.cuda()))


@pytest.mark.parametrize("mode_name", ["FP16", "FP8"])
@pytest.mark.parametrize("tokens", [1, 70, 300])
def test_a_layer_gives_the_same_bits_with_a_carrier_and_without(tokens, mode_name):
    n, k = 1024, 4096
    nested = nest((torch.randn(n, k) * 0.02).half().cuda())
    upper, lower = ops.pack(nested.upper, nested.lower)
    bias, weight = torch.randn(n).half().cuda(), torch.ones(k).half().cuda()
    x = torch.randn(tokens, k).half().cuda()
    halves, _ = run("rms_norm", "FP16", x, weight, EPSILON)
    carrier, scales = run("rms_norm", mode_name, x, weight, EPSILON)
    actual = run("linear_carried", mode_name, carrier, scales, upper, lower, bias, n, k)
    ops.set_mode(Mode[mode_name])
    expected = ops.linear(halves, upper, lower, bias, None, None, None, n, k, True)
    assert torch.equal(actual, expected)
