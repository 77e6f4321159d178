"""FP16 products of experts on a GPU for many rows of each: weights go from registers to the tensor cores.

Triton's own products of weights that were computed in registers write them to shared memory first, and wait for the tensor cores
after every step of K. Here the joined weights stay in registers, and one step is joined while the tensor cores multiply the one
before (after the mixed-input kernels of CUTLASS). Written in Gluon, Triton's language with explicit layouts.

A thread joins 16 weights of a row that lie together. The tensor cores want other ones of it: the products are right where the
activations lie in the order ``interleave`` gives them.
"""

import torch
from triton.experimental import gluon  # type: ignore[import-untyped]
from triton.experimental.gluon import language as gl  # type: ignore[import-untyped]
from triton.experimental.gluon.language.nvidia import hopper  # type: ignore[import-untyped]
from triton.experimental.gluon.language.nvidia.hopper import async_copy  # type: ignore[import-untyped]

from nestedfp.kernels.expert_tiles import unrolled
from nestedfp.kernels.experts_triton import JOIN, launch

_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared  # Triton 3.9, and before


@gluon.constexpr_function
def _fragment(rows, columns, warps):  # type: ignore[no-untyped-def]
    """The layout of a tile of weights: 16 of a row that lie together in each thread, its rows as the tensor cores have them."""
    registers, spread = [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0]], [[16, 0], [32, 0]]
    if columns == 128:
        registers.append([0, 64])
    covered = 64
    while covered < 16 * warps:
        spread.append([covered, 0])
        covered *= 2
    while covered < rows:
        registers.append([covered, 0])
        covered *= 2
    lanes = [[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, spread, [], [rows, columns])


@gluon.jit  # type: ignore[untyped-decorator]
def _joined(upper, lower, fragment: gl.constexpr, operand: gl.constexpr):  # type: ignore[no-untyped-def]
    u = upper.load(fragment)
    v = lower.load(fragment)
    rows: gl.constexpr = u.shape[0]
    columns: gl.constexpr = u.shape[1]
    w = gl.inline_asm_elementwise(JOIN, "=r,=r,r,r", [u, v], dtype=gl.float16, is_pure=True, pack=4)
    # Of K: thread, step, half, pair -> step, half, thread, pair.
    w = w.reshape([rows, columns // 64, 4, 4, 2, 2]).permute([0, 1, 3, 4, 2, 5]).reshape([rows, columns])
    return gl.convert_layout(w, operand, assert_trivial=True)


@gluon.jit
def _interleaved(c):  # type: ignore[no-untyped-def]
    """What ``interleave`` does, to the columns of results that lie along the first dimension."""
    columns: gl.constexpr = c.shape[0]
    rows: gl.constexpr = c.shape[1]
    c = c.reshape([columns // 64, 4, 4, 2, 2, rows])
    return c.permute([0, 2, 3, 1, 4, 5]).reshape([columns, rows])


@gluon.jit(do_not_specialize=["EM", "valid"])  # type: ignore[untyped-decorator]
def grouped_kernel(  # type: ignore[no-untyped-def]
    a_ptr,
    upper_ptr,
    lower_ptr,
    c_ptr,
    weights_ptr,
    sorted_ids_ptr,
    expert_ids_ptr,
    padded_ptr,
    N,
    K,
    EM,
    valid,
    stride_am,
    stride_be,
    stride_bn,
    stride_cm,
    MUL_WEIGHT: gl.constexpr,
    TOP_K: gl.constexpr,
    INTERLEAVED_C: gl.constexpr,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    GROUP_SIZE_M: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    UNROLL: gl.constexpr,
    num_warps: gl.constexpr,
):
    """One tile of C = A @ W.T for the rows of one expert, computed as W @ A.T; arguments as ``product`` has them."""
    of_weights: gl.constexpr = gl.BlockedLayout(
        [1, 16], [512 // BLOCK_SIZE_K, BLOCK_SIZE_K // 16], [num_warps, 1], [1, 0]
    )
    of_rows: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_SIZE_K, BLOCK_SIZE_K // 8], [num_warps, 1], [1, 0])
    of_results: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    fragment: gl.constexpr = _fragment(BLOCK_SIZE_N, BLOCK_SIZE_K, num_warps)
    product_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_SIZE_M, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, product_layout, 2)
    pid = gl.program_id(0)
    num_pid_m = gl.cdiv(EM, BLOCK_SIZE_M)
    num_pid_n = gl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    first_pid_m = pid // num_pid_in_group * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + (pid % num_pid_in_group) % group_size_m
    pid_n = (pid % num_pid_in_group) // group_size_m
    if pid_m * BLOCK_SIZE_M >= gl.load(padded_ptr):
        return
    ids_ptr = sorted_ids_ptr + pid_m * BLOCK_SIZE_M
    expert = gl.load(expert_ids_ptr + pid_m).to(gl.int64)
    c = gl.zeros([BLOCK_SIZE_N, BLOCK_SIZE_M], gl.float32, product_layout)
    if expert >= 0:  # else it is on another rank
        row = gl.load(ids_ptr + gl.arange(0, BLOCK_SIZE_M, gl.SliceLayout(1, of_rows)))
        k = gl.arange(0, BLOCK_SIZE_K, gl.SliceLayout(0, of_rows))
        a_at = a_ptr + (row // TOP_K).to(gl.int64)[:, None] * stride_am + k[None, :]
        a_mask = (row < valid)[:, None] & (k >= 0)[None, :]
        n = (pid_n * BLOCK_SIZE_N + gl.arange(0, BLOCK_SIZE_N, gl.SliceLayout(1, of_weights))) % N
        k = gl.arange(0, BLOCK_SIZE_K, gl.SliceLayout(0, of_weights))
        w_at = expert * stride_be + n.to(gl.int64)[:, None] * stride_bn + k[None, :]
        # Two rows that a quarter of a warp reads lie in different banks.
        plain: gl.constexpr = gl.SwizzledSharedLayout(64, 1, BLOCK_SIZE_K // 64, [1, 0])
        upper = gl.allocate_shared_memory(gl.uint8, [NUM_STAGES, BLOCK_SIZE_N, BLOCK_SIZE_K], plain)
        lower = gl.allocate_shared_memory(gl.uint8, [NUM_STAGES, BLOCK_SIZE_N, BLOCK_SIZE_K], plain)
        swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
        a = gl.allocate_shared_memory(gl.float16, [NUM_STAGES, BLOCK_SIZE_M, BLOCK_SIZE_K], swizzled)
        steps = K // BLOCK_SIZE_K
        for i in gl.static_range(NUM_STAGES - 1):
            if i < steps:
                _copy(upper.index(i), upper_ptr + w_at + i * BLOCK_SIZE_K)
                _copy(lower.index(i), lower_ptr + w_at + i * BLOCK_SIZE_K)
                _copy(a.index(i), a_at + i * BLOCK_SIZE_K, mask=a_mask)
            async_copy.commit_group()
        async_copy.wait_group(NUM_STAGES - 2)
        w = _joined(upper.index(0), lower.index(0), fragment, operand)
        before = w
        read = 0
        write = NUM_STAGES - 1
        for turn in range(steps // UNROLL):
            for i in gl.static_range(UNROLL):
                c = hopper.warpgroup_mma(w, a.index(read).permute((1, 0)), c, is_async=True)
                if i > 0:  # the step before is done, and its stage free
                    c, before = hopper.warpgroup_mma_wait(1, deps=(c, before))
                before = w
                async_copy.wait_group(NUM_STAGES - 3)
                ahead = turn * UNROLL + i + NUM_STAGES - 1
                if ahead < steps:
                    _copy(upper.index(write), upper_ptr + w_at + ahead * BLOCK_SIZE_K)
                    _copy(lower.index(write), lower_ptr + w_at + ahead * BLOCK_SIZE_K)
                    _copy(a.index(write), a_at + ahead * BLOCK_SIZE_K, mask=a_mask)
                async_copy.commit_group()
                read = gl.where(read + 1 == NUM_STAGES, 0, read + 1)
                write = gl.where(write + 1 == NUM_STAGES, 0, write + 1)
                # After the last step it joins what no one multiplies.
                w = _joined(upper.index(read), lower.index(read), fragment, operand)
            c, before, w = hopper.warpgroup_mma_wait(0, deps=(c, before, w))
        # A barrier follows: results take the place of activations, which the other warpgroup may still multiply.
        async_copy.wait_group(0)
    if MUL_WEIGHT:
        row = gl.load(ids_ptr + gl.arange(0, BLOCK_SIZE_M, gl.SliceLayout(0, product_layout)))
        c = c * gl.load(weights_ptr + row, mask=row < valid, other=0.0)[None, :]
    row = gl.load(ids_ptr + gl.arange(0, BLOCK_SIZE_M, gl.SliceLayout(1, of_results)))
    column = pid_n * BLOCK_SIZE_N + gl.arange(0, BLOCK_SIZE_N, gl.SliceLayout(0, of_results))
    results = c.to(gl.float16)
    if INTERLEAVED_C:
        results = _interleaved(results)
    results = gl.convert_layout(results.permute((1, 0)), of_results)
    c_at = c_ptr + row.to(gl.int64)[:, None] * stride_cm + column[None, :]
    gl.store(c_at, results, mask=(row < valid)[:, None] & (column < N)[None, :])


def interleave(a: torch.Tensor) -> torch.Tensor:
    """Return activations [rows, k] float16, contiguous in k, each 64 of k in the order in which the kernel has the weights."""
    pairs = a.view(torch.int32).view(len(a), -1, 4, 4, 2)  # thread, step, half
    return pairs.permute(0, 1, 3, 4, 2).reshape(len(a), -1).view(a.dtype)


def product(
    a: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    c: torch.Tensor,
    weights: torch.Tensor | None,
    sorted_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    padded: torch.Tensor,
    chosen: int,
    config: dict[str, int],
    *,
    interleaved: bool,
) -> None:
    """Multiply each row of activations by the experts that it chose, as ``experts_triton.product`` does.

    Args:
        a: from ``interleave``.
        upper, lower, c, weights, sorted_ids, expert_ids, padded, chosen: as there.
        config: tiles that ``expert_tiles.exact`` says the grouped kernel takes.
        interleaved: write the results as ``interleave`` has them; n is a multiple of 64.
    """
    operands = (a, upper, lower, c, weights, sorted_ids, expert_ids, padded, chosen)
    grid, arguments = launch(*operands, config)
    grouped_kernel[grid](
        *arguments,
        MUL_WEIGHT=weights is not None,
        TOP_K=chosen,
        INTERLEAVED_C=interleaved,
        UNROLL=unrolled(upper.shape[2], config["BLOCK_SIZE_K"]),
        NUM_STAGES=config["num_stages"],
        **{name: value for name, value in config.items() if name != "num_stages"},
    )
