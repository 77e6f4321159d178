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


def check_columns(op: str, columns: int) -> None:
    """Refuse rows that a carrier cannot have.

    Raises:
        RuntimeError: with what was expected and what came.
    """
    if columns < 1 or columns % CARRIER_COLUMNS:
        raise RuntimeError(
            f"nestedfp::{op}: expected rows of a multiple of {CARRIER_COLUMNS} columns, got {columns}; use the plain operators "
            "and nestedfp::linear for others"
        )


def check_norm(op: str, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None) -> None:
    """Check the arguments of a norm.

    Raises:
        RuntimeError: with what was expected and what came.
    """
    check_columns(op, x.shape[-1] if x.dim() else 0)
    if weight.shape != x.shape[-1:]:
        raise RuntimeError(
            f"nestedfp::{op}: expected weight of shape [{x.shape[-1]}], as x has columns, got {list(weight.shape)}"
        )
    if residual is not None and residual.shape != x.shape:
        raise RuntimeError(f"nestedfp::{op}: expected residual of shape {list(x.shape)}, got {list(residual.shape)}")


def check_gated(x: torch.Tensor) -> None:
    """Check the argument of ``silu_and_mul``.

    Raises:
        RuntimeError: with what was expected and what came.
    """
    if not x.dim() or x.shape[-1] % 2:
        raise RuntimeError(
            "nestedfp::silu_and_mul: expected x of shape [..., gate and up], an even number of columns, got "
            f"{list(x.shape)}"
        )
    check_columns("silu_and_mul", x.shape[-1] // 2)


def empty_scales(x: torch.Tensor) -> torch.Tensor:
    """Return scales, one for each row of ``x``, with no values in them yet."""
    return x.new_empty(x.shape[:-1], dtype=torch.float32)


def _normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    """The norm of FP32 rows, rounded to the weight's dtype before it multiplies and to ``dtype`` after."""
    normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return (normed.to(weight.dtype) * weight).to(dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    check_norm("rms_norm", x, weight)
    return _normed(x.to(torch.float32), weight, epsilon, x.dtype).contiguous(), empty_scales(x)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    check_norm("add_rms_norm", x, weight, residual)
    total = x.to(torch.float32) + residual.to(torch.float32)
    normed = _normed(total, weight, epsilon, x.dtype)
    return normed.contiguous(), empty_scales(x), total.to(x.dtype).contiguous()


def silu_and_mul(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    check_gated(x)
    gate, up = x.chunk(2, dim=-1)
    wide = gate.to(torch.float32)
    product = (wide / (torch.exp(-wide) + 1)).to(x.dtype) * up  # silu as Inductor spells it
    return product.contiguous(), empty_scales(product)
