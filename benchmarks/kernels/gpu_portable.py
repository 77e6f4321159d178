"""Times the portable GEMM (csrc/cuda/portable) against the libraries on problems drawn from a seed.

    python -m benchmarks.kernels.gpu_portable --seed 7 --out benchmarks/results/portable.csv

On any GPU of compute capability 8.0 or newer; on an H100 it stands in for them, and this project's Hopper kernels are timed
beside it. Systems:
    cublas_fp16           torch.mm
    portable_fp16         both planes, exact weights
    portable_upper_fp16   FP8 mode on 8.0, 8.6 and 10.x: FP16 activations by the FP8 weights
    portable_fp8          FP8 mode on 8.9 and 12.x, and here on 9.0: E4M3 by E4M3, with this project's quantiser
    library_fp16, library_fp8   what the product takes for large steps on such cards (vllm_plugin/weights/library_route.py): exact
                          weights joined into scratch memory and torch.mm; vLLM's CUTLASS GEMM behind the same quantiser
    hopper_fp16, hopper_fp8   the Hopper kernels, chosen by their cost model (on 9.0)
One system at a time has the card for a window, as in benchmarks/kernels/gpu_gemm_random.py.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch

from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_gemm_random import Launch, Rows, rotating_weights, run
from benchmarks.kernels.gpu_timing import window_us
from nestedfp.kernels import cuda_library
from nestedfp.kernels.cuda_library import PackedWeight, check, choose, library
from nestedfp.kernels.gpu_kernels import HOPPER, multiplies_fp8
from nestedfp.modes import Mode
from nestedfp.vllm_plugin.weights import library_route

EXACT, UPPER_FP16, FP8 = range(3)  # PortableOperands of csrc/cuda/portable/tile.h


@cache
def _prepare() -> None:
    has_fp8 = multiplies_fp8(torch.cuda.get_device_capability())
    check(library().nestedfp_prepare_portable(has_fp8), "prepare_portable")


def plan(operands: int, m: int, n: int, k: int, num_sms: int) -> tuple[int, int]:
    """Return the tile and the split of K that the product takes."""
    fields = (ctypes.c_int * 2)()
    library().nestedfp_portable_plan(operands, m, n, k, num_sms, fields)
    return fields[0], fields[1]


def gemm(
    operands: int,
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    how: tuple[int, int] | None = None,
) -> None:
    """Compute ``out`` [M, N] from ``x`` [M, K] float16, or from codes [M, K padded to 64] and ``scale`` [M] with FP8.

    Args:
        how: tile and split; None: the product's.
    """
    _prepare()
    m, n, k = x.shape[0], weight.n, weight.k
    num_sms = torch.cuda.get_device_properties().multi_processor_count
    tile, split = how or plan(operands, m, n, k, num_sms)
    scratch_bytes = library().nestedfp_portable_workspace_bytes(operands, m, n, k, tile, split)
    workspace = torch.empty(scratch_bytes // 4, device=x.device) if scratch_bytes else None
    error = library().nestedfp_portable_gemm(
        operands,
        m,
        n,
        k,
        tile,
        split,
        x.data_ptr(),
        x.stride(0),
        None if scale is None else scale.data_ptr(),
        weight.upper.data_ptr(),
        weight.lower.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        None if workspace is None else workspace.data_ptr(),
        torch.cuda.current_stream().cuda_stream,
    )
    check(error, f"portable gemm {operands=} {m=} {n=} {k=} {tile=} {split=}")


def systems(x: torch.Tensor, plain: list[torch.Tensor], packed: list[PackedWeight]) -> dict[str, Launch]:
    """How to launch each system that this card has, over weights in rotation."""
    (m, k), n = x.shape, packed[0].n
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    codes = torch.empty(m, k, device="cuda", dtype=torch.uint8)
    scale = torch.empty(m, device="cuda")
    capability = torch.cuda.get_device_capability()

    def quantized(launch: Launch) -> Launch:
        def both(i: int) -> None:
            kernels.quantize(x, codes, scale)
            launch(i)

        return both

    def weight(i: int) -> PackedWeight:
        return packed[i % len(packed)]

    found: dict[str, Launch] = {
        "cublas_fp16": lambda i: torch.mm(x, plain[i % len(plain)].t(), out=out),
        "portable_fp16": lambda i: gemm(EXACT, x, packed[i % len(plain)], out),
        "portable_upper_fp16": lambda i: gemm(UPPER_FP16, x, weight(i), out),
    }
    for mode, product in library_route.PRODUCTS.items():
        if mode is Mode.FP16 or capability >= (8, 9):
            found[f"library_{mode.value}"] = by_library(
                product, x, packed if mode is Mode.FP8 else packed[: len(plain)]
            )
    if multiplies_fp8(capability):
        found["portable_fp8"] = quantized(lambda i: gemm(FP8, codes, weight(i), out, scale=scale))
    if capability == HOPPER:
        fp16, fp8 = choose(cuda_library.FP16, m, n, k), choose(cuda_library.FP8, m, n, k)
        found["hopper_fp16"] = lambda i: kernels.gemm(fp16, x, packed[i % len(plain)], out)
        found["hopper_fp8"] = quantized(lambda i: kernels.gemm(fp8, codes, weight(i), out, scale=scale))
    return found


def by_library(product: library_route.Product, x: torch.Tensor, weights: list[PackedWeight]) -> Launch:
    """How to launch a product of the libraries."""

    def launch(i: int) -> None:
        weight = weights[i % len(weights)]
        product(x, weight.upper, weight.lower, None, weight.n, weight.k)

    return launch


def measure(n: int, k: int, counts: list[int], window_ms: float) -> Rows:
    """Return the rows of one shape."""
    plain, packed = rotating_weights(n, k)
    rows = []
    for m in counts:
        x = torch.randn(m, k, device="cuda").half()
        for name, launch in systems(x, plain, packed).items():
            rotation = len(packed) if "fp8" in name or "upper" in name else len(plain)
            rows.append((name, n, k, m, window_us(launch, rotation, 1e3 * window_ms)))
    return rows


if __name__ == "__main__":
    run(measure, __doc__, Path("benchmarks/results/portable.csv"), cells=120, cells_per_shape=12, window_ms=30.0)
