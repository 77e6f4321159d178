"""What the weights beyond the format's range add to the products of experts on a GPU.

A layer with such weights takes this pass after each of its products. Their activations are not quantised in either mode.
"""

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

ROWS, WEIGHTS = 16, 16  # of an expert that a program adds up, and of a row at a time


@dataclass(frozen=True, slots=True)
class Listed:
    """The listed weights of a stack, by expert and row, on its device."""

    begins: torch.Tensor  # [experts + 1] int32: where the rows of each expert begin
    rows: torch.Tensor  # [rows with such weights] int32, within their expert
    firsts: torch.Tensor  # [rows with such weights + 1] int32: where the weights of each begin
    columns: torch.Tensor  # [weights] int32
    deltas: torch.Tensor  # [weights] float32: what their planes lack
    most_rows: int  # of an expert

    @classmethod
    def of(cls, rows: torch.Tensor, columns: torch.Tensor, deltas: torch.Tensor, experts: int, n: int) -> "Listed":
        """Return the list of a ``NestedWeight`` [experts * n, k]."""
        distinct, counts = torch.unique_consecutive(rows, return_counts=True)
        of_experts = torch.arange(experts + 1, dtype=distinct.dtype, device=distinct.device) * n
        firsts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        begins = torch.searchsorted(distinct, of_experts)
        most_rows = int(begins.diff().max())
        return cls(begins.int(), (distinct % n).int(), firsts.int(), columns, deltas, most_rows)


@triton.jit  # type: ignore[untyped-decorator]
def listed_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    c_ptr,
    weights_ptr,
    ids_ptr,
    map_ptr,
    begins_ptr,
    rows_ptr,
    firsts_ptr,
    columns_ptr,
    deltas_ptr,
    N,
    stride_x,
    MAPPED: tl.constexpr,
    MUL_WEIGHT: tl.constexpr,
    TOP_K: tl.constexpr,
    ROWS: tl.constexpr,
    WEIGHTS: tl.constexpr,
):
    """Add what some listed rows of its expert make to one row of results; arguments as ``add`` has them."""
    pair = tl.program_id(0).to(tl.int64)
    expert = tl.load(ids_ptr + pair)
    if MAPPED:
        expert = tl.load(map_ptr + expert, mask=expert >= 0, other=-1)
    if expert >= 0:
        at = tl.load(begins_ptr + expert) + tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        is_row = at < tl.load(begins_ptr + expert + 1)
        first = tl.load(firsts_ptr + at, mask=is_row, other=0)
        count = tl.load(firsts_ptr + at + 1, mask=is_row, other=0) - first
        total = tl.zeros((ROWS,), dtype=tl.float32)
        for begin in range(0, tl.max(count, axis=0), WEIGHTS):
            of_row = begin + tl.arange(0, WEIGHTS)[None, :]
            is_weight = of_row < count[:, None]
            weight = first[:, None] + of_row
            column = tl.load(columns_ptr + weight, mask=is_weight, other=0)
            delta = tl.load(deltas_ptr + weight, mask=is_weight, other=0.0)
            x = tl.load(x_ptr + pair // TOP_K * stride_x + column, mask=is_weight, other=0.0)
            total += tl.sum(delta * x.to(tl.float32), axis=1)
        if MUL_WEIGHT:
            total *= tl.load(weights_ptr + pair)
        c_at = c_ptr + pair * N + tl.load(rows_ptr + at, mask=is_row, other=0)
        c = tl.load(c_at, mask=is_row, other=0.0).to(tl.float32)
        tl.store(c_at, (c + total).to(tl.float16), mask=is_row)


def add(
    c: torch.Tensor,
    x: torch.Tensor,
    listed: Listed,
    ids: torch.Tensor,
    expert_map: torch.Tensor | None,
    weights: torch.Tensor | None,
) -> None:
    """Add the products of the listed weights to those of the planes, which are rounded once more.

    Args:
        c: [rows * chosen, n] float16, contiguous: the products of the planes, and the result.
        x: [rows, k] or [rows * chosen, k] float16, contiguous in k.
        listed: of the experts here.
        ids: [rows, chosen] int32, contiguous: the experts that each row chose, of all ranks; below 0 none.
        expert_map: [experts of all ranks] int32: their numbers here, or -1; None: all are here.
        weights: [rows, chosen] float32, contiguous, which are multiplied to what is added; None: nothing is.
    """
    if not ids.numel():
        return
    listed_kernel[(ids.numel(), triton.cdiv(listed.most_rows, ROWS))](
        *(x, c, weights, ids, expert_map, listed.begins, listed.rows, listed.firsts, listed.columns, listed.deltas),
        *(c.shape[-1], x.stride(0)),
        MAPPED=expert_map is not None,
        MUL_WEIGHT=weights is not None,
        TOP_K=ids.numel() // len(x),
        ROWS=ROWS,
        WEIGHTS=WEIGHTS,
        num_warps=1,
    )
