"""The portable GEMM on a GPU, compute capability 8.0 or newer, a Hopper included: every tile and split against a reference.

Run: ``pytest -q -m gpu tests/kernels/test_gpu_portable.py``; the whole operators through it on a Hopper:
``NESTEDFP_GPU_KERNELS=portable pytest -q -m gpu tests/kernels/test_gpu_ops.py``.
"""

import pytest
import torch
from quantizer_reference import quantize_per_token

from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_portable import EXACT, FP8, UPPER_FP16, gemm
from nestedfp.format import upper_to_float
from nestedfp.kernels import cuda_library, ops
from nestedfp.kernels.gpu_kernels import multiplies_fp8

pytestmark = pytest.mark.gpu

OPERANDS = {"exact": EXACT, "upper_fp16": UPPER_FP16, "fp8": FP8}


@pytest.fixture(scope="module", autouse=True)
def library():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs a GPU of compute capability 8.0 or newer")
    cuda_library.library()
    torch.manual_seed(0)


def compute(operands, x, upper, packed, how):
    """The result and what PyTorch makes of the same operands in double precision."""
    m, n = x.shape[0], packed.n
    out = torch.full((m, n), torch.nan, device="cuda", dtype=torch.float16)
    bias = torch.randn(n, device="cuda").half()
    rounded = upper_to_float(upper.cpu()).cuda().double()
    if operands == FP8:
        codes = torch.empty(m, packed.upper.shape[1], device="cuda", dtype=torch.uint8)
        scale = torch.empty(m, device="cuda")
        kernels.quantize(x, codes, scale)
        gemm(operands, codes, packed, out, scale=scale, bias=bias, how=how)
        e4m3, token_scale = quantize_per_token(x)
        return out, e4m3.double() * token_scale.double() @ rounded.T + bias.double()
    gemm(operands, x, packed, out, bias=bias, how=how)
    return out, x.double() @ rounded.T + bias.double()


@pytest.mark.parametrize("split", [1, 2, 7])
@pytest.mark.parametrize("tile", range(5))
@pytest.mark.parametrize("operands", OPERANDS.values(), ids=OPERANDS)
def test_every_tile_and_split_computes_the_product(operands, tile, split):
    if operands == FP8 and not multiplies_fp8(torch.cuda.get_device_capability()):
        pytest.skip("FP8 mode multiplies FP16 activations here")
    for m, n, k in ((1, 200, 1088), (33, 130, 4104), (300, 333, 2048)):
        weight = torch.empty(n, k, device="cuda", dtype=torch.float16).normal_(0, 0.02)
        packed, upper = kernels.pack(weight), ops.split(weight)[0]
        x = torch.randn(m, k, device="cuda").half()
        out, expected = compute(operands, x, upper, packed, (tile, split))
        if operands == EXACT:
            expected += x.double() @ (weight.double() - _rounded(upper)).T
        error = (out.double() - expected).norm() / expected.norm()
        assert error < (6e-3 if operands == FP8 else 6e-4), f"{m=} {n=} {k=}"


def _rounded(upper):
    return upper_to_float(upper.cpu()).cuda().double()


def test_thousands_of_launches_give_the_same_bits():
    weight = torch.empty(1000, 4096, device="cuda", dtype=torch.float16).normal_(0, 0.02)
    packed = kernels.pack(weight)
    x = torch.randn(40, 4096, device="cuda").half()
    first = torch.empty(40, 1000, device="cuda", dtype=torch.float16)
    gemm(EXACT, x, packed, first, how=(2, 5))
    for _ in range(3000):
        out = torch.full_like(first, torch.nan)
        gemm(EXACT, x, packed, out, how=(2, 5))
        assert torch.equal(out, first)
