"""FP16 products of experts on a GPU for many rows of each: the GEMM of dense layers, over the rows of one expert after the other.

It reads rows that lie together (``sorted_rows``), as TMA loads them, and planes in the order of K that vLLM's kernels need too. A
thread joins 16 weights of a row that lie together. The tensor cores want other ones of it: the products are right where each 64
activations lie interleaved: of pairs, step and half before thread, where the weights have thread before step and half.
"""

from functools import cache

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

BLOCK_WORDS = 1024
PROGRAMS_PER_MULTIPROCESSOR = 16


@triton.jit(do_not_specialize=["valid"])  # type: ignore[untyped-decorator]
def rows_kernel(  # type: ignore[no-untyped-def]
    a_ptr,
    factors_ptr,
    ids_ptr,
    padded_ptr,
    x_ptr,
    scales_ptr,
    words,
    valid,
    TOP_K: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    PDL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy BLOCK words, of four bytes, of every row that is this program's; arguments as ``sorted_rows`` has them."""
    if PDL:  # the product waits for this kernel's end, and reads weights before
        tl.extra.cuda.gdc_launch_dependents()
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < words
    for place in range(tl.program_id(0), tl.load(padded_ptr), tl.num_programs(0)):
        row = tl.load(ids_ptr + place).to(tl.int64)
        if row < valid:
            value = tl.load(a_ptr + row // TOP_K * words + at, mask=mask)
            # Of 32 words: thread, step and half -> step and half, thread.
            value = value.reshape([BLOCK // 32, 4, 8]).permute([0, 2, 1]).reshape([BLOCK])
            tl.store(x_ptr + tl.full([], place, tl.int64) * words + at, value, mask=mask)
            if HAS_FACTORS:
                tl.store(scales_ptr + place, tl.load(factors_ptr + row))


def sorted_rows(
    a: torch.Tensor,
    sorted_ids: torch.Tensor,
    padded: torch.Tensor,
    chosen: int,
    *,
    factors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return ``x`` and ``scales`` for ``product``: rows, and a factor of each, in the order of ``sorted_ids``.

    Args:
        a: [rows, k] float16, k a multiple of 64.
        sorted_ids, padded: from vLLM's ``moe_align_block_size`` for rows * chosen choices.
        chosen: experts that each row of ``a`` chose.
        factors: [rows * chosen] float32; None: 1.

    Returns:
        [len(sorted_ids), k] float16, interleaved, and [len(sorted_ids)] float32, or None without factors. Where ``sorted_ids``
        fills up a tile, both stay as they were allocated.
    """
    k = a.shape[1]
    x = a.new_empty(len(sorted_ids), k)
    scales = None if factors is None else torch.empty(len(sorted_ids), dtype=torch.float32, device=a.device)
    words = k // 2
    block = min(BLOCK_WORDS, triton.next_power_of_2(words))
    columns = triton.cdiv(words, block)
    programs = max(1, PROGRAMS_PER_MULTIPROCESSOR * _multiprocessors(a.device) // columns)
    rows_kernel[min(len(sorted_ids), programs), columns](
        a.contiguous().view(torch.int32),
        factors,
        sorted_ids,
        padded,
        x.view(torch.int32),
        scales,
        words,
        len(a) * chosen,
        TOP_K=chosen,
        HAS_FACTORS=factors is not None,
        PDL=a.is_cuda,
        BLOCK=block,
    )
    return x, scales


def product(
    x: torch.Tensor,
    scales: torch.Tensor | None,
    upper: torch.Tensor,
    lower: torch.Tensor,
    out: torch.Tensor,
    sorted_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    padded: torch.Tensor,
    valid: int,
    tile_rows: int,
    *,
    is_gated: bool = False,
) -> None:
    """Multiply rows of activations by their expert, into the rows of ``out`` that ``sorted_ids`` names; others stay as they are.

    Args:
        x, scales: from ``sorted_rows``.
        upper, lower: [experts, n, k] uint8, contiguous; lower from ``experts_triton.recode``.
        out: [rows, n] float16, contiguous; gated, [len(sorted_ids), n // 2], which is ``x`` of the next product.
        sorted_ids, expert_ids, padded: from ``moe_align_block_size`` for tiles of ``tile_rows``, without experts of other ranks.
            The kernel in front must not write them, nor be launched before its own predecessor's end.
        valid: of ``sorted_ids``, those from here on fill up tiles.
        tile_rows: of ``expert_tiles.HEIGHTS``.
        is_gated: the weights are gate, then up, n // 2 a multiple of 64, and the result is silu(gate) * up, rounded as vLLM's
            operator rounds it.

    Raises:
        RuntimeError: for tensors of other shapes or dtypes, or a GPU that is not of compute capability 9.0.
    """
    torch.ops.nestedfp.experts_product(
        out, x, upper, lower, scales, sorted_ids, expert_ids, padded, valid, tile_rows, is_gated
    )


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
