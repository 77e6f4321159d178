"""The reference of the dynamic per-token FP8 quantiser of activations, which kernels reproduce bit for bit.

Each row (token) gets the scale that maps its largest magnitude to E4M3's largest value. This is the arithmetic of
vLLM's GPU operator ``dynamic_per_token_scaled_fp8_quant``: the smallest scale is 1 / (448 * 512), and rows are divided
by the scale, not multiplied by its inverse.
"""

import torch

E4M3_MAX = 448.0
MIN_SCALE = 1.0 / (E4M3_MAX * 512.0)


def quantize_per_token(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes [..., K] in E4M3 and scales [..., 1] of finite rows, with ``codes.float() * scale`` close to ``x``."""
    rows = x.to(torch.float32)
    scale = (rows.abs().amax(dim=-1, keepdim=True) / E4M3_MAX).clamp(min=MIN_SCALE)
    codes = (rows / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes, scale
