"""The GPU kernels and the libraries that they are timed against, ready to launch.

Systems (FP8 ones include their quantiser; all write FP16):

    cublas_fp16    torch.mm
    nestedfp_fp16  both planes, exact weights
    scaled_mm_fp8_row     torch._scaled_mm with token and channel scales, fast accumulation, this project's quantiser
    scaled_mm_fp8_tensor  the same with one scale for each operand. The quantiser's token scales are left out, so the time
                          is what counts here and not the result; a quantiser per tensor would have to read x twice
    vllm_fp8       vLLM's scaled_fp8_quant per token and cutlass_scaled_mm
    nestedfp_fp8   upper plane, this project's quantiser and GEMM

Weights rotate beyond L2.
"""

from collections.abc import Callable

import torch
from vllm import _custom_ops as vllm_ops

from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_timing import buffers_beyond_l2


def rotating_weights(n: int, k: int) -> tuple[list[torch.Tensor], list[kernels.PackedWeight]]:
    """Return random weights (n, k), float16, and packed ones, each as many as make a rotation that no cache holds.

    Packed ones are more: an FP8 launch reads half the bytes. The first of them are the plain ones, packed.
    """
    plain, packed = [], []
    for i in range(buffers_beyond_l2(n * k)):
        weight = torch.empty(n, k, device="cuda", dtype=torch.float16).normal_(0, 0.02)
        packed.append(kernels.pack(*kernels.split(weight)[:2]))
        if i < buffers_beyond_l2(2 * n * k):
            plain.append(weight)
    return plain, packed


def systems(
    x: torch.Tensor, plain: list[torch.Tensor], packed: list[kernels.PackedWeight]
) -> dict[str, tuple[int, Callable[[int], object]]]:
    """How to launch each system, and over how many weights it rotates."""
    (m, k), n = x.shape, packed[0].n
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    codes = torch.empty(m, k, device="cuda", dtype=torch.uint8)
    scale = torch.empty(m, device="cuda")
    codes_e4m3, scale_column = codes.view(torch.float8_e4m3fn), scale.view(m, 1)
    one, tensor_scale = torch.ones((), device="cuda"), torch.full((), 2.0**-8, device="cuda")
    channel_scale = torch.full((1, n), 2.0**-8, device="cuda")
    exact_config, fast_config = (kernels.choose(precision, m, n, k) for precision in (kernels.FP16, kernels.FP8))

    def upper(i: int) -> torch.Tensor:
        return packed[i % len(packed)].upper.view(torch.float8_e4m3fn).t()

    def scaled_mm(i: int, x_scale: torch.Tensor, weight_scale: torch.Tensor) -> None:
        kernels.quantize(x, codes, scale)
        torch._scaled_mm(codes_e4m3, upper(i), x_scale, weight_scale, out_dtype=x.dtype, use_fast_accum=True)

    def fast(i: int) -> None:
        kernels.quantize(x, codes, scale)
        kernels.gemm(fast_config, codes, packed[i % len(packed)], out, scale=scale)

    def vllm(i: int) -> None:
        quantized, token_scale = vllm_ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        vllm_ops.cutlass_scaled_mm(quantized, upper(i), token_scale, channel_scale, x.dtype)

    return {
        "cublas_fp16": (len(plain), lambda i: torch.mm(x, plain[i % len(plain)].t(), out=out)),
        "nestedfp_fp16": (len(plain), lambda i: kernels.gemm(exact_config, x, packed[i % len(plain)], out)),
        "scaled_mm_fp8_row": (len(packed), lambda i: scaled_mm(i, scale_column, channel_scale)),
        "scaled_mm_fp8_tensor": (len(packed), lambda i: scaled_mm(i, one, tensor_scale)),
        "nestedfp_fp8": (len(packed), fast),
        "vllm_fp8": (len(packed), vllm),
    }
