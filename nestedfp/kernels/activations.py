"""Reference for dynamic per-token FP8 quantisation of activations (FP8 mode with ``quantize_activations``).

Each row (token) gets the scale that maps its largest magnitude to E4M3's largest value. This is the arithmetic of
vLLM's GPU operator ``dynamic_per_token_scaled_fp8_quant``: the smallest scale is 1 / (448 * 512), and rows are divided
by the scale, not multiplied by its inverse. The kernels reproduce it bit for bit. A row with a NaN or an infinity has
no such scale: all its outputs are NaN.
"""

import torch

E4M3_MAX = 448.0
MIN_SCALE = 1.0 / (E4M3_MAX * 512.0)
# A carrier (nestedfp/kernels/ops.py) has rows of a multiple of so many columns: codes of such rows need no padding.
CARRIER_COLUMNS = 64


def quantize_per_token(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise each row to E4M3.

    Args:
        x: [..., K], any floating dtype, finite.

    Returns:
        ``(codes, scale)``: float8_e4m3fn [..., K] and float32 [..., 1], with ``codes.float() * scale`` close to ``x``.
    """
    rows = x.to(torch.float32)
    scale = (rows.abs().amax(dim=-1, keepdim=True) / E4M3_MAX).clamp(min=MIN_SCALE)
    codes = (rows / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes, scale
