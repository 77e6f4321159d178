"""Nested experts on a GPU: exact ones by kernels that join planes, fast ones by vLLM's own FP8 kernel on the upper planes.

vLLM runs all of this inside one opaque operator, so the mode is read in Python, and a CUDA graph keeps the mode it was captured in.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton.language as tl
from vllm import _custom_ops
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe import fused_moe
from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation
from vllm.model_executor.layers.fused_moe.moe_align_block_size import moe_align_block_size

from nestedfp.format import UPPER_SCALE
from nestedfp.kernels.experts import expert_tiles, experts_grouped, experts_listed, experts_triton
from nestedfp.kernels.experts.experts_listed import Listed
from nestedfp.kernels.experts.experts_silu import silu_codes
from nestedfp.kernels.experts.experts_triton import recode
from nestedfp.nested_weight import NestedWeight

logger = init_logger("vllm.nestedfp")
MAX_L2_FETCH_GRANULARITY, LINE_BYTES = 5, 128  # the CUDA driver's number of the limit, and the most it takes


@cache
def fetch_whole_lines() -> None:
    """Have the current GPU's L2 fetch whole lines for this process, or warn that the driver refuses; no result changes.

    Exact products read 64 bytes of a row of a plane at a time, and the 64 beside them soon after. Without it a step that is bound
    by memory takes up to 1.5 times as long.
    """
    torch.cuda.synchronize()  # makes its context current
    if error := ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(MAX_L2_FETCH_GRANULARITY, ctypes.c_size_t(LINE_BYTES)):
        logger.warning("the L2 does not fetch whole lines (CUDA error %d): exact steps of experts are slower", error)


@dataclass(frozen=True, slots=True)
class Stack:
    """One of the two matrices of all experts."""

    upper: torch.Tensor  # [experts, n, k] uint8
    lower: torch.Tensor  # [experts, n, k] uint8, from ``recode``
    scales: torch.Tensor  # [experts, n, 1] float32, all equal: the format's
    listed: Listed | None = None  # weights beyond the format's range

    @classmethod
    def of(cls, upper: torch.Tensor, lower: torch.Tensor, weight: NestedWeight | None = None) -> "Stack":
        """Return the operands of planes that ``packed`` made, and of the list of ``weight``."""
        experts, n, _ = upper.shape
        scales = torch.full((experts, n, 1), 1 / UPPER_SCALE, dtype=torch.float32, device=upper.device)
        lists = (weight.outlier_rows, weight.outlier_cols, weight.outlier_deltas) if weight else (None, None, None)
        rows, columns, deltas = lists
        if rows is None or columns is None or deltas is None:
            return cls(upper, lower, scales)
        return cls(upper, lower, scales, Listed.of(rows, columns, deltas, experts, n))


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
    tiles = expert_tiles.exact(choice.ids.numel() / _experts(w13, choice), _shapes(w13, w2))
    if isinstance(tiles, int):
        return _grouped(x, w13, w2, choice, tiles)
    placed = places(choice, _experts(w13, choice), tiles[0])

    def product(a: torch.Tensor, stack: Stack, c: torch.Tensor, weights: torch.Tensor | None, chosen: int) -> None:
        experts_triton.product(a, stack.upper, stack.lower, c, weights, *placed, chosen, tiles[stack is w2])

    return _two_products(x, w13, w2, choice, product, quantises=False)


def _grouped(x: torch.Tensor, w13: Stack, w2: Stack, choice: Choice, tile_rows: int) -> torch.Tensor:
    (rows, chosen), double = choice.ids.shape, w13.upper.shape[1]
    placed = sorted_places(choice, _experts(w13, choice), tile_rows)
    sorted_ids, _, padded = placed
    of_rows, weights = experts_grouped.sorted_rows(x, sorted_ids, padded, chosen, factors=choice.weights.reshape(-1))
    middle = None
    if choice.activation is MoEActivation.SILU and not w13.listed and not w2.listed:
        intermediate = x.new_empty(len(sorted_ids), double // 2)
        experts_grouped.product(
            of_rows, None, w13.upper, w13.lower, intermediate, *placed, rows * chosen, tile_rows, is_gated=True
        )
    else:
        both = x.new_empty(rows * chosen, double)
        experts_grouped.product(of_rows, None, w13.upper, w13.lower, both, *placed, rows * chosen, tile_rows)
        _add_listed(both, x, w13, choice, None)
        middle = activated(choice.activation, both)
        del both
        intermediate, _ = experts_grouped.sorted_rows(middle, sorted_ids, padded, 1)
        middle = middle if w2.listed else None
    del of_rows  # its memory serves below
    # What no expert of this rank computes stays as it is.
    new = x.new_empty if choice.expert_map is None else x.new_zeros
    parts = new(rows * chosen, x.shape[1])
    experts_grouped.product(intermediate, weights, w2.upper, w2.lower, parts, *placed, rows * chosen, tile_rows)
    _add_listed(parts, middle, w2, choice, choice.weights)
    del intermediate, middle
    return _sum(parts.view(rows, chosen, -1))


def fast(x: torch.Tensor, w13: Stack, w2: Stack, choice: Choice) -> torch.Tensor:
    """Compute as ``exact`` with the upper planes and activations of E4M3, by vLLM's Triton kernel."""
    experts = _experts(w13, choice)
    tiles = expert_tiles.fast(choice.ids.numel() / experts, _shapes(w13, w2))
    placed = places(choice, experts, tiles[0])

    def product(
        codes: tuple[torch.Tensor, torch.Tensor],
        stack: Stack,
        c: torch.Tensor,
        weights: torch.Tensor | None,
        chosen: int,
    ) -> None:
        upper, scales = stack.upper.view(torch.float8_e4m3fn), (codes[1], stack.scales)
        vllms_product(codes[0], upper, c, weights, placed, chosen, tiles[stack is w2], scales)

    return _two_products(x, w13, w2, choice, product, quantises=True)


def quantised(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the E4M3 codes of rows, and their scales."""
    codes, scales = _custom_ops.scaled_fp8_quant(a, use_per_token_if_dynamic=True)
    return codes, scales


def activated_codes(activation: MoEActivation, both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the E4M3 codes and scales of the activation of gates and ups, [rows, 2 * intermediate] float16."""
    return silu_codes(both) if activation is MoEActivation.SILU else quantised(activated(activation, both))


def activated(activation: MoEActivation, both: torch.Tensor) -> torch.Tensor:
    """Return the activation of gates and ups, [rows, 2 * intermediate] float16."""
    result = both.new_empty(len(both), both.shape[1] // 2)
    apply_moe_activation(activation, result, both)
    return result


def vllms_product(
    a: torch.Tensor,
    w: torch.Tensor,
    c: torch.Tensor,
    weights: torch.Tensor | None,
    placed: Any,
    chosen: int,
    tiles: dict[str, int],
    scales: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Multiply by vLLM's Triton kernel, E4M3 with ``scales`` of ``a`` and ``w``; as ``experts_triton.product``."""
    fused_moe.invoke_fused_moe_triton_kernel(
        a,
        w,
        c,
        *scales,
        weights,
        *placed,
        weights is not None,
        chosen,
        tiles,
        compute_type=tl.float16,  # vLLM's own experts round to BF16 with E4M3
        use_fp8_w8a8=True,
        use_int8_w8a8=False,
        use_int8_w8a16=False,
        use_int4_w4a16=False,
        per_channel_quant=True,
    )


def _shapes(*stacks: Stack) -> list[torch.Size]:
    return [stack.upper.shape for stack in stacks]


def _experts(w13: Stack, choice: Choice) -> int:
    """The experts of all ranks."""
    return len(w13.upper) if choice.expert_map is None else len(choice.expert_map)


def places(choice: Choice, experts: int, tiles: dict[str, int]) -> Any:
    """Return which rows, and which of the ``experts`` of all ranks, each tile of a product has, as vLLM's kernel takes it."""
    rows, chosen = choice.ids.shape
    return fused_moe._prepare_expert_assignment(choice.ids, tiles, rows, chosen, experts, choice.expert_map)


def sorted_places(choice: Choice, experts: int, tile_rows: int) -> Any:
    """Return the same for the grouped products, which leave the experts of other ranks out."""
    return moe_align_block_size(choice.ids, tile_rows, experts, choice.expert_map, ignore_invalid_experts=True)


def _two_products(x: Any, w13: Stack, w2: Stack, choice: Choice, product: Any, *, quantises: bool) -> torch.Tensor:
    (rows, chosen), double, hidden = choice.ids.shape, *w13.upper.shape[1:]
    both = torch.empty(rows, chosen, double, dtype=torch.float16, device=choice.ids.device)
    product(quantised(x) if quantises else x, w13, both, None, chosen)
    both = both.view(-1, double)
    _add_listed(both, x, w13, choice, None)
    parts, middle = both.new_empty(rows, chosen, hidden), None
    if quantises and not w2.listed:
        given = activated_codes(choice.activation, both)
    else:
        middle = activated(choice.activation, both)
        given = quantised(middle) if quantises else middle
    product(given, w2, parts, choice.weights, 1)
    _add_listed(parts.view(-1, hidden), middle, w2, choice, choice.weights)
    del given, middle
    return _sum(parts)


def _add_listed(
    c: torch.Tensor, x: torch.Tensor | None, stack: Stack, choice: Choice, weights: torch.Tensor | None
) -> None:
    if stack.listed and x is not None:
        experts_listed.add(c, x, stack.listed, choice.ids, choice.expert_map, weights)


def _sum(parts: torch.Tensor) -> torch.Tensor:
    total = parts.new_empty(len(parts), parts.shape[2])
    _custom_ops.moe_sum(parts, total)
    return total
