"""FP16 products of experts on a GPU for many rows of each: weights go from registers to the tensor cores.

Triton's own products of weights that were computed in registers write them to shared memory first, and wait for the tensor cores
after every step of K. Here the joined weights stay in registers, and half a step is joined while the tensor cores multiply the half
before (after the mixed-input kernels of CUTLASS). Tiles of up to 128 rows leave room for two blocks on a multiprocessor: one
multiplies while the other waits. Written in Gluon, Triton's language with explicit layouts.

A thread joins 16 weights of a row that lie together. The tensor cores want other ones of it: the products are right where the
activations lie in the order ``interleave`` gives them.
"""

import torch
from triton.experimental import gluon  # type: ignore[import-untyped]
from triton.experimental.gluon import language as gl  # type: ignore[import-untyped]
from triton.experimental.gluon.language.nvidia import hopper  # type: ignore[import-untyped]
from triton.experimental.gluon.language.nvidia.hopper import async_copy  # type: ignore[import-untyped]

from nestedfp.kernels.experts_triton import JOIN, launch

_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared  # Triton 3.9, and before


@gluon.constexpr_function
def _fragment(rows, warps):  # type: ignore[no-untyped-def]
    """The layout of 64 columns of weights: 16 of a row that lie together in each thread, its rows as the tensor cores have them."""
    registers, spread = [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0]], [[16, 0], [32, 0]]
    covered = 64
    while covered < 16 * warps:
        spread.append([covered, 0])
        covered *= 2
    while covered < rows:
        registers.append([covered, 0])
        covered *= 2
    lanes = [[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, spread, [], [rows, 64])


@gluon.jit  # type: ignore[untyped-decorator]
def _halves(plane, fragment: gl.constexpr):  # type: ignore[no-untyped-def]
    """Half of the 64 columns for the first two steps of 16 of the tensor cores, and half for the next two."""
    x = plane.load(fragment)
    rows: gl.constexpr = x.shape[0]
    return gl.split(x.reshape([rows, 4, 2, 2, 4]).permute([0, 1, 3, 4, 2]))  # thread, step, weight, half


@gluon.jit  # type: ignore[untyped-decorator]
def _joined(u, v, operand: gl.constexpr):  # type: ignore[no-untyped-def]
    rows: gl.constexpr = u.shape[0]
    w = gl.inline_asm_elementwise(JOIN, "=r,=r,r,r", [u, v], dtype=gl.float16, is_pure=True, pack=4)
    # Of K: thread, step, half, pair -> step, half, thread, pair.
    w = w.reshape([rows, 4, 2, 2, 2]).permute([0, 2, 3, 1, 4]).reshape([rows, 32])
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
    num_warps: gl.constexpr,
):
    """One tile of C = A @ W.T for the rows of one expert, computed as W @ A.T; arguments as ``product`` has them."""
    gl.static_assert(BLOCK_SIZE_K == 64)
    half: gl.constexpr = BLOCK_SIZE_K // 2
    of_weights: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [num_warps, 1], [1, 0])
    of_rows: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    fragment: gl.constexpr = _fragment(BLOCK_SIZE_N, num_warps)
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
    ids_ptr = sorted_ids_ptr + pid_m * BLOCK_SIZE_M
    if pid_m * BLOCK_SIZE_M >= gl.load(padded_ptr):
        return
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
        # Planes are in registers while their step is multiplied, so they need a stage less than activations.
        planes: gl.constexpr = NUM_STAGES - 1
        plain: gl.constexpr = gl.SwizzledSharedLayout(BLOCK_SIZE_K, 1, 1, [1, 0])
        upper = gl.allocate_shared_memory(gl.uint8, [planes, BLOCK_SIZE_N, BLOCK_SIZE_K], plain)
        lower = gl.allocate_shared_memory(gl.uint8, [planes, BLOCK_SIZE_N, BLOCK_SIZE_K], plain)
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
        hopper.fence_async_shared()  # the tensor cores see what this thread copied; Triton 3.6 does not say so by itself
        w1 = gl.zeros([BLOCK_SIZE_N, half], gl.float16, operand)
        planes_slot, a_slot, a_free = 0, 0, NUM_STAGES - 1
        for i in range(steps):
            u0, u1 = _halves(upper.index(planes_slot), fragment)
            v0, v1 = _halves(lower.index(planes_slot), fragment)
            w0 = _joined(u0, v0, operand)
            c = hopper.warpgroup_mma(w0, a.index(a_slot).slice(0, half, 1).permute((1, 0)), c, is_async=True)
            c, w1 = hopper.warpgroup_mma_wait(1, deps=(c, w1))
            w1 = _joined(u1, v1, operand)
            c = hopper.warpgroup_mma(w1, a.index(a_slot).slice(half, half, 1).permute((1, 0)), c, is_async=True)
            ahead = i + NUM_STAGES - 1
            if ahead < steps:
                _copy(upper.index(planes_slot), upper_ptr + w_at + ahead * BLOCK_SIZE_K)
                _copy(lower.index(planes_slot), lower_ptr + w_at + ahead * BLOCK_SIZE_K)
                _copy(a.index(a_free), a_at + ahead * BLOCK_SIZE_K, mask=a_mask)
            async_copy.commit_group()
            c, w0 = hopper.warpgroup_mma_wait(1, deps=(c, w0))
            async_copy.wait_group(NUM_STAGES - 2)
            hopper.fence_async_shared()
            a_free = a_slot
            a_slot = gl.where(a_slot + 1 == NUM_STAGES, 0, a_slot + 1)
            planes_slot = gl.where(planes_slot + 1 == planes, 0, planes_slot + 1)
        c, w1 = hopper.warpgroup_mma_wait(0, deps=(c, w1))
        # A barrier follows: results take the place of activations, which the other warpgroup may still multiply.
        async_copy.wait_group(0)
    if MUL_WEIGHT:
        row = gl.load(ids_ptr + gl.arange(0, BLOCK_SIZE_M, gl.SliceLayout(0, product_layout)))
        c = c * gl.load(weights_ptr + row, mask=row < valid, other=0.0)[None, :]
    row = gl.load(ids_ptr + gl.arange(0, BLOCK_SIZE_M, gl.SliceLayout(1, of_rows)))
    column = pid_n * BLOCK_SIZE_N + gl.arange(0, BLOCK_SIZE_N, gl.SliceLayout(0, of_rows))
    results = c.to(gl.float16)
    if INTERLEAVED_C:
        results = _interleaved(results)
    results = gl.convert_layout(results.permute((1, 0)), of_rows)
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
        NUM_STAGES=config["num_stages"],
        **{name: value for name, value in config.items() if name != "num_stages"},
    )
