"""Times the GPU kernels against the libraries, writes benchmarks/results/h100-gemm.csv and prints geometric means.

python -m benchmarks.kernels.gpu_gemm

Systems (FP8 ones include their quantiser; all write FP16):
    cublas_fp16    torch.mm
    nestedfp_fp16  both planes, exact weights
    scaled_mm_fp8  the faster of the next two for each shape and M
    scaled_mm_fp8_row     torch._scaled_mm with token and channel scales, fast accumulation, this project's quantiser
    scaled_mm_fp8_tensor  the same with one scale for each operand. The quantiser's token scales are left out, so the time
                          is what counts here and not the result; a quantiser per tensor would have to read x twice
    vllm_fp8       vLLM's scaled_fp8_quant per token and cutlass_scaled_mm; only where vLLM can be imported
    nestedfp_fp8   upper plane, this project's quantiser and GEMM
    floor_fp16, floor_fp8  not measured: weights, x and result at 3.0 TB/s (the card's copy rate) or the arithmetic at
                   798 TFLOP/s (FP16, the best rate seen on such cards) and twice that (FP8), whichever takes longer
nestedfp_* kernels use programmatic dependent launch (PDL), as in the product; --no-pdl times them without. Weights rotate
beyond L2; a time is the median of interleaved CUDA graph replays.
"""

import argparse
import csv
import math
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.choice.gpu_tune import environment
from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_shapes import SHAPES, TOKENS
from benchmarks.kernels.gpu_timing import buffers_beyond_l2, capture, interleaved_us

ROUNDS = 11
COPY_BYTES_PER_US = 3.0e6
FP16_FLOP_PER_US = 798e6
BANDS = {"all": (1, 4096), "M <= 128": (1, 128), "M 192..768": (192, 768), "M >= 1024": (1024, 4096)}

try:
    from vllm import _custom_ops as vllm_ops  # type: ignore[import-not-found]
except Exception:  # vLLM is optional here, and may fail to load in many ways
    vllm_ops = None


def rotating_weights(n: int, k: int) -> tuple[list[torch.Tensor], list[kernels.PackedWeight]]:
    """Return random weights (n, k), float16, and packed ones, each as many as make a rotation that no cache holds.

    Packed ones are more: an FP8 launch reads half the bytes. The first of them are the plain ones, packed.
    """
    plain, packed = [], []
    for i in range(buffers_beyond_l2(n * k)):
        weight = torch.empty(n, k, device="cuda", dtype=torch.float16).normal_(0, 0.02)
        packed.append(kernels.pack(*kernels.split(weight)[:2]))
        if i < buffers_beyond_l2(2 * n * k):
            plain.append(weight)
    return plain, packed


def launcher(
    config: kernels.Config, x: torch.Tensor, weights: list[kernels.PackedWeight], pdl: bool = True
) -> Callable[[int], object]:
    """How to launch a config on activations [M, K] float16 and the i-th of rotating weights; FP8 ones with the quantiser."""
    (m, k), n = x.shape, weights[0].n
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    if kernels.tiles()[config.tile].precision == kernels.FP16:
        return lambda i: kernels.gemm(config, x, weights[i % len(weights)], out, pdl=pdl)
    codes = torch.empty(m, k, device="cuda", dtype=torch.uint8)
    scale = torch.empty(m, device="cuda")

    def fp8(i: int) -> None:
        kernels.quantize(x, codes, scale)
        kernels.gemm(config, codes, weights[i % len(weights)], out, scale=scale, pdl=pdl)

    return fp8


def systems(
    x: torch.Tensor, plain: list[torch.Tensor], packed: list[kernels.PackedWeight], pdl: bool
) -> dict[str, tuple[int, Callable[[int], object]]]:
    """How to launch each system, and over how many weights it rotates."""
    (m, k), n = x.shape, packed[0].n
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    codes = torch.empty(m, k, device="cuda", dtype=torch.uint8)
    scale = torch.empty(m, device="cuda")
    codes_e4m3, scale_column = codes.view(torch.float8_e4m3fn), scale.view(m, 1)
    one, tensor_scale = torch.ones((), device="cuda"), torch.full((), 2.0**-8, device="cuda")
    channel_scale = torch.full((1, n), 2.0**-8, device="cuda")
    exact = packed[: len(plain)]

    def upper(i: int) -> torch.Tensor:
        return packed[i % len(packed)].upper.view(torch.float8_e4m3fn).t()

    def scaled_mm(i: int, x_scale: torch.Tensor, weight_scale: torch.Tensor) -> None:
        kernels.quantize(x, codes, scale)
        torch._scaled_mm(codes_e4m3, upper(i), x_scale, weight_scale, out_dtype=x.dtype, use_fast_accum=True)

    def vllm(i: int) -> None:
        quantized, token_scale = vllm_ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        vllm_ops.cutlass_scaled_mm(quantized, upper(i), token_scale, channel_scale, x.dtype)

    found: dict[str, tuple[int, Callable[[int], object]]] = {
        "cublas_fp16": (len(plain), lambda i: torch.mm(x, plain[i % len(plain)].t(), out=out)),
        "nestedfp_fp16": (len(exact), launcher(kernels.choose(kernels.FP16, m, n, k), x, exact, pdl)),
        "scaled_mm_fp8_row": (len(packed), lambda i: scaled_mm(i, scale_column, channel_scale)),
        "scaled_mm_fp8_tensor": (len(packed), lambda i: scaled_mm(i, one, tensor_scale)),
        "nestedfp_fp8": (len(packed), launcher(kernels.choose(kernels.FP8, m, n, k), x, packed, pdl)),
    }
    if vllm_ops is not None:
        found["vllm_fp8"] = (len(packed), vllm)
    return found


def floor_us(m: int, n: int, k: int, weight_bytes: int) -> float:
    """Return the time that no kernel can beat with weights of 1 or 2 bytes and as many bytes for each of x."""
    moved = n * k * weight_bytes + m * k * weight_bytes + m * n * 2
    return max(moved / COPY_BYTES_PER_US, 2.0 * m * n * k / (FP16_FLOP_PER_US * (2 / weight_bytes)))


def with_derived(problem: tuple[int, int, int], measured: dict[str, float]) -> dict[str, float]:
    """Add the best library call and the floors to the times of one shape and M."""
    n, k, m = problem
    library = min(measured["scaled_mm_fp8_row"], measured["scaled_mm_fp8_tensor"])
    floors = {"floor_fp16": floor_us(m, n, k, 2), "floor_fp8": floor_us(m, n, k, 1)}
    return {**measured, "scaled_mm_fp8": library, **floors}


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def print_table(times: dict[tuple[int, int, int], dict[str, float]]) -> None:
    """Ratios of times: geometric mean and worst, by band of token counts."""
    ratios = [
        ("nestedfp_fp16", "cublas_fp16"),
        ("nestedfp_fp8", "scaled_mm_fp8"),
        ("nestedfp_fp8", "scaled_mm_fp8_row"),
        ("nestedfp_fp8", "vllm_fp8"),
        ("nestedfp_fp8", "cublas_fp16"),
    ]
    for ours, theirs in ratios:
        for band, (low, high) in BANDS.items():
            values = [row[ours] / row[theirs] for (_, _, m), row in times.items() if low <= m <= high and theirs in row]
            if values:
                print(f"{ours} / {theirs}  {band:11s} geomean {geomean(values):.3f}  worst {max(values):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h100-gemm.csv"))
    parser.add_argument(
        "--pdl", action=argparse.BooleanOptionalAction, default=True, help="programmatic dependent launch of the GEMMs"
    )
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    times: dict[tuple[int, int, int], dict[str, float]] = {}
    for n, k in dict.fromkeys(SHAPES.values()):
        plain, packed = rotating_weights(n, k)
        for m in TOKENS:
            graphs, counts, names = [], [], []
            expected_us = floor_us(m, n, k, 2) + 3
            for name, (rotation, launch) in systems(
                torch.randn(m, k, device="cuda").half(), plain, packed, args.pdl
            ).items():
                count = max(1, math.ceil(600 / expected_us / rotation)) * rotation
                graphs.append(capture(launch, count))
                counts.append(count)
                names.append(name)
            measured = dict(zip(names, interleaved_us(graphs, counts, ROUNDS), strict=True))
            times[n, k, m] = with_derived((n, k, m), measured)
        del plain, packed
        torch.cuda.empty_cache()
    about = environment()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        file.write(f"# {about['gpu']}, driver {about['driver']}, clocks {about['clocks']} at the end, free-running\n")
        file.write(f"# torch {about['torch']}, CUDA {about['cuda']}, {about['date']}\n")
        file.write(f"# python -m benchmarks.kernels.gpu_gemm{'' if args.pdl else ' --no-pdl'}\n")
        if vllm_ops is None:
            file.write("# without vllm_fp8: vLLM cannot be imported\n")
        writer = csv.writer(file)
        writer.writerow(["system", "N", "K", "M", "us"])
        for (n, k, m), row in times.items():
            writer.writerows([name, n, k, m, f"{us:.2f}"] for name, us in row.items())
    print_table(times)


if __name__ == "__main__":
    main()
