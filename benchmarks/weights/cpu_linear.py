"""Time one linear layer on the CPU, D[M,N] = X[M,K] @ W[N,K].T.

Run: ``python -m benchmarks.weights.cpu_linear [--out CSV]``

All systems of a cell run in one process, interleaved, and the median of their repetitions is kept, so that a slow
moment of the machine hits all of them. Weights rotate through copies that together exceed the last-level cache: decode
reads memory.

Systems
    read_floor      the 2 N K bytes of FP16 weights, only read and added, by the same thread pool
    torch_fp32      torch.nn.functional.linear in FP32
    vllm_fp16       vLLM's own unquantised CPU linear in FP16, as vLLM dispatches it on this processor
    nestedfp_fp16   both planes, exact FP16 weights
    nestedfp_fp8    upper plane only

CSV: ``system,N,K,M,threads,ms,gb_per_s``; gb_per_s counts the weight bytes that the system reads, in 10^9 bytes.
"""

import argparse
import datetime
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.results_csv import write
from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import NestedWeight, nest

SHAPES = ((2048, 2048), (3072, 2048), (11264, 2048), (2048, 5632))  # (N, K): o, qkv, gate_up, down of a 1B Llama
TOKENS = (1, 2, 4, 8, 16, 64, 256, 1024)
LONG_PREFILL = (2048, 2048, 4096)  # (N, K, M)
DEFAULT_OUT = Path(__file__).parents[1] / "results" / "cpu-linear.csv"
CELL_BUDGET_S = 3.0  # measuring time of one (N, K, M); at least MIN_REPETITIONS are made whatever they take
MIN_REPETITIONS = 3
MAX_REPETITIONS = 50


@dataclass(frozen=True)
class System:
    """One way to compute the layer: ``run(x, copy)`` uses copy number ``copy`` of the weights."""

    name: str
    weight_bytes: int  # read by one call
    dtype: torch.dtype  # of x
    run: Callable[[torch.Tensor, int], object]


def last_level_cache_bytes() -> int:
    """Return the size of the largest cache of processor 0, or 32 MiB where the kernel does not say."""
    sizes = [text.read_text().strip() for text in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 1 << 10, "M": 1 << 20}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes), default=32 << 20)


def vllm_linear(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return vLLM's own linear over ``weight``, chosen by vLLM."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    return lambda x: layer.cpu_linear(x, layer.weight, None)  # type: ignore[operator]


def nested_run(planes: list[tuple[torch.Tensor, torch.Tensor]], n: int, k: int, mode: Mode) -> Callable[..., object]:
    """Return ``run`` for one mode over packed planes."""

    def run(x: torch.Tensor, copy: int) -> object:
        ops.set_mode(mode)
        return ops.linear(x, *planes[copy], None, None, None, None, n, k, False)

    return run


def build_systems(n: int, k: int, copies: int) -> list[System]:
    """Make every system with ``copies`` copies of one random weight."""
    weight = (torch.randn(n, k) * 0.02).half()
    nested = nest(weight)
    assert isinstance(nested, NestedWeight), "normal weights of scale 0.02 are inside the range"
    plain = [weight.view(torch.int64).clone() for _ in range(copies)]
    planes = [ops.pack(nested.upper, nested.lower) for _ in range(copies)]
    floats = [weight.float() for _ in range(max(2, copies // 4))]
    half_bytes = 2 * n * k
    linear = torch.nn.functional.linear
    systems = [
        System("read_floor", half_bytes, torch.float16, lambda x, i: plain[i].sum()),
        System("torch_fp32", 4 * n * k, torch.float32, lambda x, i: linear(x, floats[i % len(floats)])),
        System("nestedfp_fp16", half_bytes, torch.float16, nested_run(planes, n, k, Mode.FP16)),
        System("nestedfp_fp8", n * k, torch.float16, nested_run(planes, n, k, Mode.FP8)),
    ]
    try:
        theirs = [vllm_linear(weight) for _ in range(max(2, copies // 2))]
    except ImportError as error:
        print(f"vllm_fp16 is left out: {error}", file=sys.stderr)
    else:
        systems.insert(2, System("vllm_fp16", half_bytes, torch.float16, lambda x, i: theirs[i % len(theirs)](x)))
    return systems


def time_cell(systems: list[System], k: int, m: int, copies: int) -> dict[str, float]:
    """Return the median milliseconds of one call of each system."""
    x = torch.randn(m, k)
    inputs = {dtype: x.to(dtype) for dtype in (torch.float16, torch.float32)}
    samples_ms: dict[str, list[float]] = {system.name: [] for system in systems}
    began_s = time.perf_counter()
    for repetition in range(MAX_REPETITIONS + 1):
        for system in systems:
            start_s = time.perf_counter()
            system.run(inputs[system.dtype], repetition % copies)
            if repetition > 0:  # the first call warms up
                samples_ms[system.name].append((time.perf_counter() - start_s) * 1e3)
        if repetition >= MIN_REPETITIONS and time.perf_counter() - began_s > CELL_BUDGET_S:
            break
    return {name: statistics.median(samples) for name, samples in samples_ms.items()}


def header(argv: list[str]) -> list[str]:
    """Return the lines that say where and how the numbers were taken."""
    try:
        import vllm

        vllm_version = vllm.__version__
    except ImportError:
        vllm_version = "none"
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return [
        f"CPU: {names[0] if names else platform.processor()}, {len(names)} logical; "
        f"ISA of nestedfp: {ops.cpu_isa()}; last-level cache {last_level_cache_bytes() >> 20} MiB",
        f"threads: {torch.get_num_threads()}; torch {torch.__version__}; vllm {vllm_version}; "
        f"python {platform.python_version()}",
        f"date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC; "
        f"command: python -m benchmarks.weights.cpu_linear {' '.join(argv)}".rstrip(),
    ]


def main(argv: list[str]) -> int:
    """Command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weights.cpu_linear", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="CSV to write")
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    rows: list[tuple[object, ...]] = []
    for n, k in SHAPES:
        copies = -(-3 * last_level_cache_bytes() // (n * k))
        systems = build_systems(n, k, copies)
        long_prefill = (LONG_PREFILL[2],) if (n, k) == LONG_PREFILL[:2] else ()
        for m in (*TOKENS, *long_prefill):
            ms = time_cell(systems, k, m, copies)
            print(n, k, m, {name: round(value, 3) for name, value in ms.items()}, flush=True)
            for system in systems:
                gb_per_s = system.weight_bytes / ms[system.name] / 1e6
                threads = torch.get_num_threads()
                rows.append((system.name, n, k, m, threads, f"{ms[system.name]:.4f}", f"{gb_per_s:.3f}"))
    ops.set_mode(Mode.FP16)
    write(args.out, ("system", "N", "K", "M", "threads", "ms", "gb_per_s"), rows, header(argv))
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
