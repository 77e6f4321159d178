"""silu(gate) * up of the rows of experts, and its E4M3 codes, in one kernel: half the bytes of two.

``ops.silu_and_mul`` writes codes in the order of packed planes. Experts' planes have K in its own order, as vLLM's kernels read it.
"""

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

E4M3_MAX = tl.constexpr(448.0)
MIN_SCALE = tl.constexpr(1.0 / (448.0 * 512.0))
COLUMNS_PER_WARP = 256


@triton.jit  # type: ignore[untyped-decorator]
def silu_codes_kernel(x_ptr, codes_ptr, scales_ptr, K, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute one row, of BLOCK columns at most; arguments as ``silu_codes`` has them."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < K
    gate = tl.load(x_ptr + row * 2 * K + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * K + K + at, mask=mask, other=0.0)
    value = ((gate / (1.0 + tl.exp(-gate))).to(tl.float16) * up).to(tl.float32)
    scale = tl.maximum(tl.math.div_rn(tl.max(tl.abs(value)), E4M3_MAX), MIN_SCALE)
    tl.store(codes_ptr + row * K + at, tl.math.div_rn(value, scale).to(tl.float8e4nv), mask=mask)
    tl.store(scales_ptr + row, scale)


def silu_codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what vLLM's silu_and_mul and then its dynamic quantiser of rows make of ``x``, but for the last bit of silu.

    Args:
        x: [rows, 2 * k] float16, contiguous, gate then up.

    Returns:
        codes [rows, k] float8_e4m3fn and scales [rows, 1] float32.
    """
    rows, k = len(x), x.shape[1] // 2
    codes = torch.empty(rows, k, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(k)
    warps = min(16, max(1, block // COLUMNS_PER_WARP))
    silu_codes_kernel[(rows,)](x, codes, scales, k, BLOCK=block, num_warps=warps)
    return codes, scales
