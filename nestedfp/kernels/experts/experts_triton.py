"""FP16 products of experts on a GPU, as a Triton kernel: it reads both planes and joins them in registers.

Its grid is that of vLLM's ``fused_moe_kernel``. Planes lie in the natural order of K; the lower one is recoded (``recode``) so that
four weights take six instructions, wherever they lie.
"""

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

# A weight is sign | (upper & 0x7f) * 128 + residual, and the recoded lower plane holds residual + RESIDUAL_BIAS, in one byte.
RESIDUAL_BIAS = 127

# In a 32-bit register lie two weights, upper above recoded lower. Half of the inverted magnitudes, added, takes them from where
# the permute put them (times 256) and leaves them where they belong (times 128); the constant cancels what the inversion added,
# the bias, and the carry from one weight into the other.
JOIN = tl.constexpr(
    """
    {
        .reg .b32 a, b, c, d;
        prmt.b32 a, $2, $3, 0x1504;
        prmt.b32 b, $2, $3, 0x3726;
        lop3.b32 c, a, 0x7f007f00, 0x80018002, 0xAE;
        lop3.b32 d, b, 0x7f007f00, 0x80018002, 0xAE;
        shr.s32 c, c, 1;
        shr.s32 d, d, 1;
        add.u32 $0, a, c;
        add.u32 $1, b, d;
    }
    """
)


def recode(lower: torch.Tensor) -> torch.Tensor:
    """Return the lower plane as ``product`` reads it, uint8 of the same shape: the residual of each weight, biased."""
    low = lower.to(torch.int16) & 0x7F
    rounded_up = (low > 64) | ((low == 64) & (lower >= 0x80))
    return (low - 128 * rounded_up + RESIDUAL_BIAS).to(torch.uint8)


@triton.jit
def _join(upper, lower):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(JOIN, "=r,=r,r,r", [upper, lower], dtype=tl.float16, is_pure=True, pack=4)


@triton.jit(do_not_specialize=["EM", "valid"])  # type: ignore[untyped-decorator]
def experts_kernel(  # type: ignore[no-untyped-def]
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
    NAIVE: tl.constexpr,
    MUL_WEIGHT: tl.constexpr,
    EVEN_K: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
):
    """One tile of C = A @ W.T for the tokens of one expert; arguments as ``product`` has them."""
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(EM, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    if pid_m * BLOCK_SIZE_M >= tl.load(padded_ptr):
        return
    offs = tl.arange(0, BLOCK_SIZE_M).to(tl.int64)
    if NAIVE:
        token = tl.where(offs == 0, pid_m, valid).to(tl.int64)
    else:
        token = tl.load(sorted_ids_ptr + pid_m * BLOCK_SIZE_M + offs).to(tl.int64)
    is_token = token < valid
    expert = tl.load(expert_ids_ptr + pid_m).to(tl.int64)
    columns = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * token[:, None] + columns[None, :]
    c_mask = is_token[:, None] & (columns[None, :] < N)
    if expert == -1:  # on another rank
        tl.store(c_ptrs, tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float16), mask=c_mask)
        return
    rows = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N).to(tl.int64)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_at = token[:, None] // TOP_K * stride_am + offs_k[None, :]
    b_at = expert * stride_be + offs_k[:, None] + rows[None, :] * stride_bn
    a_mask, b_k = is_token[:, None], offs_k[:, None]
    a_k = offs_k[None, :]
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        if EVEN_K:
            a = tl.load(a_ptr + a_at, mask=a_mask, other=0.0)
            upper = tl.load(upper_ptr + b_at)
            lower = tl.load(lower_ptr + b_at)
        else:
            left = K - k * BLOCK_SIZE_K
            a = tl.load(a_ptr + a_at, mask=a_mask & (a_k < left), other=0.0)
            upper = tl.load(upper_ptr + b_at, mask=b_k < left, other=0)
            lower = tl.load(lower_ptr + b_at, mask=b_k < left, other=127)  # a weight of 0
        w = _join(upper, lower)
        accumulator = tl.dot(a, w, acc=accumulator)
        a_at += BLOCK_SIZE_K
        b_at += BLOCK_SIZE_K
    if MUL_WEIGHT:
        weight = tl.load(weights_ptr + token, mask=is_token, other=0)
        accumulator *= weight[:, None]
    tl.store(c_ptrs, accumulator.to(tl.float16), mask=c_mask)


def product(
    a: torch.Tensor,
    upper: torch.Tensor,
    lower: torch.Tensor,
    c: torch.Tensor,
    weights: torch.Tensor | None,
    sorted_ids: torch.Tensor | None,
    expert_ids: torch.Tensor,
    padded: torch.Tensor,
    chosen: int,
    config: dict[str, int],
) -> None:
    """Multiply each row of activations by the experts that it chose.

    Args:
        a: [rows, k] float16, contiguous in k.
        upper, lower: [experts, n, k] uint8, contiguous; lower from ``recode``.
        c: [rows * chosen, n] float16, contiguous: the results.
        weights: [rows * chosen] float32, multiplied to the results; None: nothing is.
        sorted_ids, expert_ids, padded: from vLLM's ``_prepare_expert_assignment`` for ``config["BLOCK_SIZE_M"]``.
        chosen: experts that each row of ``a`` chose.
        config: tiles: BLOCK_SIZE_M, _N, _K, GROUP_SIZE_M, and num_warps and num_stages or the compiler's.
    """
    _, n, k = upper.shape
    block_m, valid = config["BLOCK_SIZE_M"], len(a) * chosen
    padded_rows = valid * block_m  # as many tiles as rows at most
    if sorted_ids is not None:
        padded_rows = min(padded_rows, len(sorted_ids))
    experts_kernel[(triton.cdiv(padded_rows, block_m) * triton.cdiv(n, config["BLOCK_SIZE_N"]),)](
        *(a, upper, lower, c, weights, sorted_ids, expert_ids, padded),
        *(n, k, padded_rows, valid, a.stride(0), upper.stride(0), upper.stride(1), c.stride(-2)),
        NAIVE=sorted_ids is None,
        MUL_WEIGHT=weights is not None,
        EVEN_K=k % config["BLOCK_SIZE_K"] == 0,
        TOP_K=chosen,
        **config,
    )
