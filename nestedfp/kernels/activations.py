"""What makes activations before they meet weights, on a CPU.

The norms and the activation are those that a GPU fuses with that quantiser. Their arithmetic is vLLM's definition of these
operators, step by step. On a CPU a carrier always holds activations in the dtype of ``x``, and its scales are never read:
``nestedfp::linear_carried`` quantises there. So a graph with fused operators computes what the graph without them does, and both
modes of one compiled graph can be tested without a GPU.
"""

import torch

# A carrier (nestedfp/kernels/ops.py) has rows of a multiple of so many columns: codes of such rows need no padding.
CARRIER_COLUMNS = 64
# The longest row that a GPU's norm takes: kMaxNormColumns of csrc/cuda/kernels/kernels.h.
MAX_NORM_COLUMNS = 16384


def empty_scales(x: torch.Tensor) -> torch.Tensor:
    """Return scales, one for each row of ``x``, with no values in them yet."""
    return x.new_empty(x.shape[:-1], dtype=torch.float32)


def _normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    """The norm of FP32 rows, rounded to the weight's dtype before it multiplies and to ``dtype`` after."""
    normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return (normed.to(weight.dtype) * weight).to(dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    return _normed(x.to(torch.float32), weight, epsilon, x.dtype).contiguous(), empty_scales(x)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    total = x.to(torch.float32) + residual.to(torch.float32)
    normed = _normed(total, weight, epsilon, x.dtype)
    return normed.contiguous(), empty_scales(x), total.to(x.dtype).contiguous()


def silu_and_mul(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = x.chunk(2, dim=-1)
    wide = gate.to(torch.float32)
    product = (wide / (torch.exp(-wide) + 1)).to(x.dtype) * up  # silu as Inductor spells it
    return product.contiguous(), empty_scales(product)
