"""What precedes a linear layer and writes what it reads: on the CPU, as torch sees it, and error texts.

Run: ``pytest -q tests/kernels/test_fused_ops.py``
"""

import pytest
import torch

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import NestedWeight, nest

pytestmark = pytest.mark.usefixtures("fp16_mode")

N, K = 40, 128
NAMESPACE = torch.ops.nestedfp


def halves(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).half()


@pytest.fixture(scope="module")
def layer():
    """A layer's operands: upper, lower and bias."""
    nested = nest(halves(N, K) * 0.1)
    assert isinstance(nested, NestedWeight)
    return *ops.pack(nested.upper, nested.lower), halves(N)


def test_opcheck_of_the_operators(layer):
    x, weight = halves(2, 3, K), halves(K)
    torch.library.opcheck(NAMESPACE.rms_norm.default, (x, weight, 1e-5), test_utils=UNINITIALISED)
    torch.library.opcheck(NAMESPACE.add_rms_norm.default, (x, x, weight, 1e-5), test_utils=UNINITIALISED)
    torch.library.opcheck(NAMESPACE.silu_and_mul.default, (halves(3, 2 * K),), test_utils=UNINITIALISED)
    carrier, scales = ops.rms_norm(x, weight, 1e-5)
    torch.library.opcheck(NAMESPACE.linear_carried.default, (carrier, scales, *layer, N, K))


# All but the comparison of results with a compiled graph's: nobody writes scales on a CPU.
UNINITIALISED = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize("shape", [(5,), (2, 3), (0,), ()])
@pytest.mark.parametrize("mode", list(Mode))
def test_a_carried_row_gives_what_the_plain_operators_give(layer, shape, mode):
    upper, lower, bias = layer
    x, residual, weight = halves(*shape, K), halves(*shape, K) * 2, halves(K)
    plain = torch.nn.functional.rms_norm(x.float(), (K,), None, 1e-5).half() * weight
    carrier, scales = ops.rms_norm(x, weight, 1e-5)
    ops.set_mode(mode)
    torch.testing.assert_close(carrier, plain, atol=2e-3, rtol=2e-3)
    out = ops.linear_carried(carrier, scales, upper, lower, bias, N, K)
    assert torch.equal(out, ops.linear(carrier, upper, lower, bias, None, None, None, N, K, True))
    added, _, total = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    wide = x.float() + residual.float()
    plain = torch.nn.functional.rms_norm(wide, (K,), None, 1e-5).half() * weight
    torch.testing.assert_close(added, plain, atol=2e-3, rtol=2e-3)
    gate_and_up = torch.cat([x, residual], dim=-1)
    gated, _ = ops.silu_and_mul(gate_and_up)
    torch.testing.assert_close(gated, torch.nn.functional.silu(x) * residual, atol=2e-3, rtol=2e-3)


def test_a_linear_layer_refuses_what_is_no_carrier(layer):
    carrier, scales = halves(5, K), torch.zeros(5)
    for x, of, message in (
        (halves(5, 64), scales, r"expected carrier of shape \[\.\.\., k=128\], got \[5, 64\]"),
        (carrier, torch.zeros(4), r"one value for each row of the carrier \[5, 128\], got \[4\]"),
        (carrier, scales.half(), "expected scales of dtype Float, got Half"),
        (halves(K, 5).t(), scales, "expected a contiguous carrier as the operator before it made it"),
    ):
        with pytest.raises(RuntimeError, match=f"nestedfp::linear_carried: .*{message}"):
            ops.linear_carried(x, of, *layer, N, K)
    narrow = nest(halves(N, 100) * 0.1)
    planes = ops.pack(narrow.upper, narrow.lower)
    with pytest.raises(RuntimeError, match=r"a multiple of 64 columns, at most .*, got 100; use the plain operators"):
        ops.linear_carried(halves(5, 100), scales, *planes, None, N, 100)
