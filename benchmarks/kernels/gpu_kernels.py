"""The CUDA kernels through their C functions (csrc/cuda/capi), with a config of the caller's choice.

For benchmarks, tuning and kernel tests; the product calls torch.ops.nestedfp. What the product needs as well stands in
nestedfp/kernels/cuda_library.py.
"""

import torch

from nestedfp.kernels import cuda_ops, ops
from nestedfp.kernels.cuda_library import NUM_SMS_H100, Config, PackedWeight, check, describe, library, tiles
from nestedfp.kernels.gpu_kernels import is_portable


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def pack(weight: torch.Tensor) -> PackedWeight:
    """Nest [N, K] float16, on a GPU, for the GEMM."""
    cuda_ops.load()
    upper, lower, _ = ops.split(weight)
    return PackedWeight(*ops.pack(upper, lower), *weight.shape)


def quantize(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> None:
    """Quantise [M, K] float16 into ``codes`` [M, K padded to 64] uint8, permuted, and ``scale`` [M] float32."""
    m, k = x.shape
    pdl = not is_portable(torch.cuda.get_device_capability())
    args = (x.data_ptr(), x.stride(0), codes.data_ptr(), scale.data_ptr(), m, k, pdl, _stream())
    check(library().nestedfp_quantize(*args), "quantize")


def gemm(
    config: Config,
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    neutral_lower: bool = False,
    pdl: bool = True,
    num_sms: int = NUM_SMS_H100,
) -> None:
    """Compute ``out`` [M, N] from ``x`` [M, K] float16, or from codes and ``scale`` if the tile is an FP8 one.

    Args:
        num_sms: multiprocessors that it is laid out for; fewer than the GPU has cut small problems as large ones are.
    """
    problem = (tiles()[config.tile].precision, x.shape[0], weight.n, weight.k, num_sms, config.fields())
    scratch_bytes = library().nestedfp_workspace_bytes(*problem)
    scratch = torch.empty(scratch_bytes // 4, device=x.device) if scratch_bytes else None
    error = library().nestedfp_gemm(
        *problem,
        x.data_ptr(),
        x.stride(0),
        None if scale is None else scale.data_ptr(),
        weight.upper.data_ptr(),
        weight.lower.data_ptr(),
        neutral_lower,
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        None if scratch is None else scratch.data_ptr(),
        pdl,
        _stream(),
    )
    check(error, f"gemm {describe(config)} m={x.shape[0]} n={weight.n} k={weight.k}")
