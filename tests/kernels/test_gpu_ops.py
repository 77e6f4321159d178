"""torch.ops.nestedfp on CUDA tensors: the same answers as on the CPU, modes, outliers, errors, torch.compile.

Run: ``pytest -q -m gpu tests/kernels/test_gpu_ops.py``
"""

import pytest
import torch

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import NestedWeight, nest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper_operators", "fp16_mode")]


def nested(n: int, k: int, outliers: int):
    """A weight, and it nested on both devices."""
    weight = (torch.randn(n, k) * 0.02).half()
    flat = weight.view(-1)
    flat[torch.randperm(n * k)[: min(outliers, n * k // 1000)]] = 3.25  # more than 0.1 % would not be nested
    on_cpu, on_gpu = nest(weight), nest(weight.cuda())
    assert isinstance(on_cpu, NestedWeight)
    assert isinstance(on_gpu, NestedWeight)
    return weight, on_cpu, on_gpu


def run(x, nested_weight, bias, quantize):
    upper, lower = ops.pack(nested_weight.upper, nested_weight.lower)
    lists = (nested_weight.outlier_rows, nested_weight.outlier_cols, nested_weight.outlier_deltas)
    return ops.linear(x, upper, lower, bias, *lists, *nested_weight.upper.shape, quantize)


@pytest.mark.parametrize("outliers", [0, 40])
def test_nesting_gives_the_same_planes_and_lists_as_on_the_cpu(outliers):
    _, on_cpu, on_gpu = nested(333, 520, outliers)
    for name in ("upper", "lower", "outlier_rows", "outlier_cols", "outlier_deltas"):
        mine, theirs = getattr(on_gpu, name), getattr(on_cpu, name)
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine.cpu(), theirs), name


@pytest.mark.parametrize("outliers", [0, 40])
@pytest.mark.parametrize("quantize", [True, False])
@pytest.mark.parametrize("mode_name", ["FP16", "FP8"])
@pytest.mark.parametrize(
    ("shape", "n", "k"), [((1,), 333, 520), ((2, 3), 333, 523), ((70,), 1024, 1024), ((0,), 64, 64)]
)
def test_linear_agrees_with_the_cpu(shape, n, k, mode_name, quantize, outliers):
    ops.set_mode(Mode[mode_name])
    _, on_cpu, on_gpu = nested(n, k, outliers)
    x, bias = torch.randn(*shape, k).half(), torch.randn(n).half()
    expected = run(x, on_cpu, bias, quantize)
    actual = run(x.cuda(), on_gpu, bias.cuda(), quantize)
    assert actual.shape == expected.shape
    if actual.numel():
        error = (actual.cpu().double() - expected.double()).norm() / expected.double().norm()
        assert error < (6e-3 if mode_name == "FP8" and quantize else 6e-4)


@pytest.mark.parametrize("quantize", [True, False])
def test_fakes_and_schemas_agree_with_the_kernels(quantize):
    _, _, on_gpu = nested(130, 200, 20)
    packed = ops.pack(on_gpu.upper, on_gpu.lower)
    lists = (on_gpu.outlier_rows, on_gpu.outlier_cols, on_gpu.outlier_deltas)
    x = torch.randn(5, 200).half().cuda()
    linear = (x, *packed, None, *lists, 130, 200, quantize)
    torch.library.opcheck(torch.ops.nestedfp.linear.default, linear, test_utils=("test_schema", "test_faketensor"))


def test_the_mode_is_read_when_a_compiled_graph_runs():
    weight, _, on_gpu = nested(256, 512, 0)
    upper, lower = ops.pack(on_gpu.upper, on_gpu.lower)
    compiled = torch.compile(
        lambda x: ops.linear(x, upper, lower, None, None, None, None, 256, 512, True) + 1,
        fullgraph=True,
        backend="aot_eager",
    )
    x = torch.randn(4, 512).half().cuda()
    exact = compiled(x)
    ops.set_mode(Mode.FP8)
    rounded = compiled(x)
    assert not torch.equal(exact, rounded)
    assert torch.allclose(exact.float(), (x.float() @ weight.cuda().float().t() + 1), atol=2e-2)


def test_a_weight_wider_than_the_quantiser_holds_is_refused_when_it_is_packed():
    plane = torch.zeros(16, 81984, dtype=torch.uint8).cuda()
    with pytest.raises(RuntimeError, match="expected at most 81920 input features"):
        ops.pack(plane, plane)


def test_activations_that_are_not_contiguous_or_misaligned_give_the_same_result():
    _, _, on_gpu = nested(128, 512, 0)
    x = torch.randn(6, 512).half().cuda()
    strided = x.t().contiguous().t()
    shifted = torch.empty(6 * 512 + 1, dtype=torch.float16, device="cuda")[1:].view(6, 512).copy_(x)
    for mode in Mode:
        ops.set_mode(mode)
        expected = run(x, on_gpu, None, True)
        assert torch.equal(run(strided, on_gpu, None, True), expected)
        assert torch.equal(run(shifted, on_gpu, None, True), expected)
