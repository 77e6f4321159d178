"""Times the GPU kernels against the libraries on problems drawn from a seed: the benchmark that cannot be tuned to.

    python -m benchmarks.kernels.gpu_gemm_random --seed 7 --cells 400

Systems (FP8 ones include their quantiser; all write FP16; weights rotate beyond L2):

    cublas_fp16    torch.mm
    nestedfp_fp16  both planes, exact weights
    scaled_mm_fp8_row     torch._scaled_mm with token and channel scales, fast accumulation, this project's quantiser
    scaled_mm_fp8_tensor  the same with one scale for each operand. The quantiser's token scales are left out, so the time
                          is what counts here and not the result; a quantiser per tensor would have to read x twice
    vllm_fp8       vLLM's scaled_fp8_quant per token and cutlass_scaled_mm
    nestedfp_fp8   upper plane, this project's quantiser and GEMM

Ours take the config that the engine would take: some are timed on each shape first, at TUNED_TOKENS
(nestedfp/kernels/tuning/gemm_tuning.py), and the cost model, corrected by these times, chooses at M.
One system at a time: each has the card to itself for a window, whose first part is not counted, so that the power cap
charges whoever draws the power. Windows are longer where arithmetic bounds the time, since only there the cap is reached.
Problems have shapes that layers have: N and K multiples of 64. N, K and M are log-uniform: as many cells between 1 and 2 tokens as
between 4,096 and 8,192. The file says the seed; its rows are of that run alone.
"""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from vllm import _custom_ops as vllm_ops

from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_timing import buffers_beyond_l2, window_us
from benchmarks.results_csv import heading, write
from nestedfp.kernels.cuda_library import FP8, FP16, NUM_SMS_H100, PackedWeight, choose
from nestedfp.kernels.tuning import gemm_tuning

SIDES = (2048, 75_000)
LARGEST_WEIGHT = 400_000_000  # elements; the largest published layer that is measured elsewhere has 336 million
TOKENS = (1, 8192)
RESULT = Path("benchmarks/results/h100-gemm-random.csv")
Launch = Callable[[int], object]
Rows = list[tuple[str, int, int, int, float]]  # system, N, K, M, microseconds


def rotating_weights(n: int, k: int) -> tuple[list[torch.Tensor], list[PackedWeight]]:
    """Return random weights (n, k), float16, and packed ones, each as many as make a rotation that no cache holds.

    Packed ones are more: an FP8 launch reads half the bytes. The first of them are the plain ones, packed.
    """
    plain, packed = [], []
    for i in range(buffers_beyond_l2(n * k)):
        weight = torch.empty(n, k, device="cuda", dtype=torch.float16).normal_(0, 0.02)
        packed.append(kernels.pack(weight))
        if i < buffers_beyond_l2(2 * n * k):
            plain.append(weight)
    return plain, packed


def systems(
    x: torch.Tensor, plain: list[torch.Tensor], packed: list[PackedWeight]
) -> dict[str, tuple[int, Callable[[int], object]]]:
    """How to launch each system, and over how many weights it rotates."""
    (m, k), n = x.shape, packed[0].n
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    codes = torch.empty(m, k, device="cuda", dtype=torch.uint8)
    scale = torch.empty(m, device="cuda")
    codes_e4m3, scale_column = codes.view(torch.float8_e4m3fn), scale.view(m, 1)
    one, tensor_scale = torch.ones((), device="cuda"), torch.full((), 2.0**-8, device="cuda")
    channel_scale = torch.full((1, n), 2.0**-8, device="cuda")
    exact_config, fast_config = (choose(precision, m, n, k) for precision in (FP16, FP8))

    def upper(i: int) -> torch.Tensor:
        return packed[i % len(packed)].upper.view(torch.float8_e4m3fn).t()

    def scaled_mm(i: int, x_scale: torch.Tensor, weight_scale: torch.Tensor) -> None:
        kernels.quantize(x, codes, scale)
        torch._scaled_mm(codes_e4m3, upper(i), x_scale, weight_scale, out_dtype=x.dtype, use_fast_accum=True)

    def fast(i: int) -> None:
        kernels.quantize(x, codes, scale)
        kernels.gemm(fast_config, codes, packed[i % len(packed)], out, scale=scale)

    def vllm(i: int) -> None:
        quantized, token_scale = vllm_ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        vllm_ops.cutlass_scaled_mm(quantized, upper(i), token_scale, channel_scale, x.dtype)

    return {
        "cublas_fp16": (len(plain), lambda i: torch.mm(x, plain[i % len(plain)].t(), out=out)),
        "nestedfp_fp16": (len(plain), lambda i: kernels.gemm(exact_config, x, packed[i % len(plain)], out)),
        "scaled_mm_fp8_row": (len(packed), lambda i: scaled_mm(i, scale_column, channel_scale)),
        "scaled_mm_fp8_tensor": (len(packed), lambda i: scaled_mm(i, one, tensor_scale)),
        "nestedfp_fp8": (len(packed), fast),
        "vllm_fp8": (len(packed), vllm),
    }


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _side(rng: random.Random) -> int:
    return _log_uniform(rng, SIDES[0] // 64, SIDES[1] // 64) * 64


def draw(seed: int, cells: int, cells_per_shape: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield shapes as ``(n, k, token counts)``, ascending counts, ``cells`` of them in all."""
    rng = random.Random(seed)
    while cells > 0:
        n, k = _side(rng), _side(rng)
        if n * k > LARGEST_WEIGHT:
            continue
        count = min(cells, cells_per_shape)
        cells -= count
        yield n, k, sorted(_log_uniform(rng, *TOKENS) for _ in range(count))


def measure(n: int, k: int, counts: list[int], window_ms: float) -> Rows:
    """Return the rows of one shape."""
    plain, packed = rotating_weights(n, k)
    gemm_tuning.forget()
    timings = gemm_tuning.tune({(n, k): packed}, gemm_tuning.TUNED_TOKENS, NUM_SMS_H100)
    gemm_tuning.take(timings[n, k], NUM_SMS_H100)
    rows = []
    for m in counts:
        x = torch.randn(m, k, device="cuda").half()
        for name, (rotation, launch) in systems(x, plain, packed).items():
            # The card's power control averages over tens of milliseconds.
            length_us = 1e3 * (window_ms if m >= 384 else window_ms / 6)
            rows.append((name, n, k, m, window_us(launch, rotation, length_us)))
    return rows


def run(
    of_shape: Callable[[int, int, list[int], float], Rows], description: str | None, out: Path, **defaults: float
) -> None:
    """Draw problems as the command line says, have each shape measured, and write the result file."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cells", type=int)
    parser.add_argument("--cells-per-shape", type=int)
    parser.add_argument("--window-ms", type=float, help="per system and cell, for the longest")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after the shape that passes this limit")
    parser.add_argument("--out", type=Path, default=out)
    parser.set_defaults(**defaults)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    began_s, rows = time.monotonic(), []
    for n, k, counts in draw(args.seed, args.cells, args.cells_per_shape):
        rows += of_shape(n, k, counts, args.window_ms)
        torch.cuda.empty_cache()
        if time.monotonic() - began_s > args.seconds:
            break
    cells = f"seed {args.seed}, {len({row[1:4] for row in rows})} cells, {time.monotonic() - began_s:.0f} s"
    shown = [(*row[:4], f"{row[4]:.2f}") for row in rows]
    write(args.out, ("system", "N", "K", "M", "us"), shown, [*heading(), cells])
    print(f"{len(rows)} times in {args.out}; python -m docs.tables makes a table of them")


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    run(measure, __doc__, RESULT, cells=400, cells_per_shape=16, window_ms=100.0)
