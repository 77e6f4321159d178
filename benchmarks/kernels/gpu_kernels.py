"""The CUDA kernels through their C functions (csrc/cuda/capi), with a config of the caller's choice.

For benchmarks, tuning and kernel tests; the product calls torch.ops.nestedfp.

What the product needs as well stands in nestedfp/kernels/cuda_library.py and is named here too.
"""

import torch

from nestedfp.kernels.cuda_library import FP8 as FP8
from nestedfp.kernels.cuda_library import FP16 as FP16
from nestedfp.kernels.cuda_library import NUM_SMS_H100 as NUM_SMS_H100
from nestedfp.kernels.cuda_library import Config as Config
from nestedfp.kernels.cuda_library import PackedWeight as PackedWeight
from nestedfp.kernels.cuda_library import check
from nestedfp.kernels.cuda_library import choose as choose
from nestedfp.kernels.cuda_library import describe as describe
from nestedfp.kernels.cuda_library import library as library
from nestedfp.kernels.cuda_library import predict_us as predict_us
from nestedfp.kernels.cuda_library import tiles as tiles
from nestedfp.kernels.cuda_library import valid_configs as valid_configs


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def split(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split [N, K] float16 into canonical planes, and count what does not fit."""
    upper = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    lower = torch.empty_like(upper)
    counts = torch.zeros(2, dtype=torch.int64, device=weight.device)
    args = (weight.data_ptr(), upper.data_ptr(), lower.data_ptr(), weight.numel(), counts.data_ptr(), _stream())
    check(library().nestedfp_split(*args), "split")
    return upper, lower, counts


def pack(upper: torch.Tensor, lower: torch.Tensor) -> PackedWeight:
    """Rearrange canonical planes for the GEMM."""
    n, k = upper.shape
    packed_upper = torch.empty(n, library().nestedfp_upper_pitch(k), dtype=torch.uint8, device=upper.device)
    packed_lower = torch.empty(library().nestedfp_lower_bytes(n, k), dtype=torch.uint8, device=upper.device)
    pointers = (upper.data_ptr(), lower.data_ptr(), packed_upper.data_ptr(), packed_lower.data_ptr())
    check(library().nestedfp_pack(*pointers, n, k, _stream()), "pack")
    return PackedWeight(packed_upper, packed_lower, n, k)


def quantize(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> None:
    """Quantise [M, K] float16 into ``codes`` [M, K padded to 64] uint8, permuted, and ``scale`` [M] float32."""
    m, k = x.shape
    args = (x.data_ptr(), x.stride(0), codes.data_ptr(), scale.data_ptr(), m, k, _stream())
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
