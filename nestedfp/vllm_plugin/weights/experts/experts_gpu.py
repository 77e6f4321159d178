"""Nested experts on a GPU: exact ones by the kernel that joins planes, fast ones by vLLM's own FP8 kernels on the upper planes.

vLLM runs all of this inside one opaque operator, so the mode is read in Python, and a CUDA graph keeps the mode it was captured in.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from vllm import _custom_ops
from vllm.model_executor.layers.fused_moe import fused_moe
from vllm.model_executor.layers.fused_moe.activation import apply_moe_activation

from nestedfp.format import UPPER_SCALE
from nestedfp.kernels import experts_triton
from nestedfp.kernels.experts_triton import recode
from nestedfp.nested_weight import NestedWeight


@dataclass(frozen=True, slots=True)
class Stack:
    """One of the two matrices of all experts."""

    upper: torch.Tensor  # [experts, n, k] uint8
    lower: torch.Tensor  # [experts, n, k] uint8, from ``recode``
    scales: torch.Tensor  # [experts, n, 1] float32, all equal: the format's

    @classmethod
    def of(cls, upper: torch.Tensor, lower: torch.Tensor) -> "Stack":
        """Return the operands of planes that ``packed`` made."""
        experts, n, _ = upper.shape
        return cls(upper, lower, torch.full((experts, n, 1), 1 / UPPER_SCALE, device=upper.device))


def packed(weight: NestedWeight, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the planes of a stack [experts, n, k] as the kernels read them, uint8 of that shape."""
    lower = weight.lower.view(shape)
    for plane in lower:  # one by one: it takes two bytes and more for each weight meanwhile
        plane.copy_(recode(plane))
    return weight.upper.view(shape), lower


@dataclass(frozen=True, slots=True)
class Choice:
    """What the router chose for the rows ``x``."""

    weights: torch.Tensor  # [rows, chosen] float32
    ids: torch.Tensor  # [rows, chosen] int32, of all experts of all ranks
    expert_map: torch.Tensor | None  # [experts of all ranks] int32: numbers on this rank, or -1
    activation: Any  # vLLM's ``MoEActivation``


def exact(x: torch.Tensor, w13: Stack, w2: Stack, choice: Choice) -> torch.Tensor:
    """Compute the weighted sum of the chosen experts with the stored FP16 weights.

    Args:
        x: [rows, hidden] float16, contiguous.
        w13, w2: of gate and up, [experts, 2 * intermediate, hidden], and of down, [experts, hidden, intermediate].
        choice: of the router.

    Returns:
        [rows, hidden] float16.
    """
    config = fused_moe.try_get_optimal_moe_config(w13.upper.shape, w2.upper.shape, choice.ids.shape[1], None, len(x))
    places = _places(x, w13, choice, config)

    def product(a: torch.Tensor, stack: Stack, c: torch.Tensor, weights: torch.Tensor | None, chosen: int) -> None:
        experts_triton.product(a, stack.upper, stack.lower, c, weights, *places, chosen, config)

    return _two_products(x, w13, w2, choice, product)


def fast(x: torch.Tensor, w13: Stack, w2: Stack, choice: Choice) -> torch.Tensor:
    """Compute as ``exact`` with the upper planes and activations of E4M3, by vLLM's Triton kernel."""
    config = fused_moe.try_get_optimal_moe_config(
        w13.upper.shape, w2.upper.shape, choice.ids.shape[1], "fp8_w8a8", len(x)
    )
    places = _places(x, w13, choice, config)

    def product(a: torch.Tensor, stack: Stack, c: torch.Tensor, weights: torch.Tensor | None, chosen: int) -> None:
        codes, scales = _custom_ops.scaled_fp8_quant(a, use_per_token_if_dynamic=True)
        fused_moe.invoke_fused_moe_triton_kernel(
            codes,
            stack.upper.view(torch.float8_e4m3fn),
            c,
            scales,
            stack.scales,
            weights,
            *places,
            weights is not None,
            chosen,
            config,
            compute_type=tl.float16,  # vLLM's own experts round to BF16 here
            use_fp8_w8a8=True,
            use_int8_w8a8=False,
            use_int8_w8a16=False,
            use_int4_w4a16=False,
            per_channel_quant=True,
        )

    return _two_products(x, w13, w2, choice, product)


def _places(x: torch.Tensor, w13: Stack, choice: Choice, config: dict[str, int]) -> Any:
    experts = len(w13.upper) if choice.expert_map is None else len(choice.expert_map)
    return fused_moe._prepare_expert_assignment(
        choice.ids, config, len(x), choice.ids.shape[1], experts, choice.expert_map
    )


def _two_products(x: torch.Tensor, w13: Stack, w2: Stack, choice: Choice, product: Any) -> torch.Tensor:
    (rows, hidden), double, chosen = x.shape, w13.upper.shape[1], choice.ids.shape[1]
    both = x.new_empty(rows, chosen, double)
    product(x, w13, both, None, chosen)
    activated = x.new_empty(rows * chosen, double // 2)
    apply_moe_activation(choice.activation, activated, both.view(-1, double))
    parts = x.new_empty(rows, chosen, hidden)
    product(activated, w2, parts, choice.weights, 1)
    return parts.sum(1)
