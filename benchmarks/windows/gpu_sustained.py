"""Time, power and clock of GEMM configs that have the card to themselves for long enough to meet its power cap.

    python -m benchmarks.windows.gpu_sustained --model mistral-24b --tokens 256,384,512,768,1024
    python -m benchmarks.windows.gpu_sustained --tokens 432,448,464 --window-s 0.035 --rest-s 0.06     # as a prompt among decodes

For every layer shape of a model and every token count: the library (cuBLAS in FP16; ``--precision fp8``: torch._scaled_mm with
one scale) and the configs of this project's GEMM that the cost model finds best, the one it takes marked. FP8 systems include
this project's quantiser. Rows ``system,config,chosen,N,K,M,us,watts,sm_mhz,mj``; mj is the energy of a launch
in millijoules, from the card's own counter. That moves every 20 to 100 ms: windows of less than a second show time, but their
power is good to some 40 % only. With ``--rest-s`` the card copies memory, as decodes do, before each of a window's repeats: a
card that has not multiplied for some steps runs faster, and other configs may be best there. ``--activations zeros`` shows how
much of a time is the power that multiplying draws.
"""

import argparse
import csv
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from vllm.third_party import pynvml

from benchmarks.engine.engine_shapes import SHAPES
from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_gemm import COPY_BYTES_PER_US, floor_us, launcher, rotating_weights, systems
from benchmarks.kernels.gpu_timing import capture
from benchmarks.results_csv import heading

RESULT = Path("benchmarks/results/h100-sustained.csv")
COLUMNS = ("system", "config", "chosen", "N", "K", "M", "us", "watts", "sm_mhz", "mj")
WARM_SHARE = 0.3  # of a window, not counted
BURSTS, MOST_BURST_S = 9, 0.1


def layers(model: str) -> list[tuple[int, int]]:
    """Return (N, K) of a layer's GEMMs: attention in and out, MLP in and out."""
    hidden, intermediate, _, heads, kv_heads, head, _ = SHAPES[model]
    return [
        ((heads + 2 * kv_heads) * head, hidden),
        (hidden, heads * head),
        (2 * intermediate, hidden),
        (hidden, intermediate),
    ]


def window(
    launch: Callable[[int], object], rotation: int, expected_us: float, window_s: float, device: object
) -> list[float]:
    """Launch for ``window_s``; return microseconds of a launch, watts, SM clock in MHz and millijoules of a launch."""
    count = max(1, round(2000 / expected_us / rotation)) * rotation
    graph = capture(launch, count)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    replays = max(4, round(window_s * 1e6 / (count * expected_us)))
    warm = round(WARM_SHARE * replays)
    for _ in range(warm):
        graph.replay()
    torch.cuda.synchronize()
    energy_mj, began_s = pynvml.nvmlDeviceGetTotalEnergyConsumption(device), time.perf_counter()
    begin.record()
    for _ in range(replays - warm):
        graph.replay()
    end.record()
    while not end.query():
        clock_mhz = pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)
        time.sleep(0.002)
    watts = (pynvml.nvmlDeviceGetTotalEnergyConsumption(device) - energy_mj) / (time.perf_counter() - began_s) / 1e3
    us = begin.elapsed_time(end) * 1e3 / ((replays - warm) * count)
    return [round(us, 2), round(watts, 1), clock_mhz, round(watts * us / 1e3, 3)]


def bursts(
    launch: Callable[[int], object], rotation: int, expected_us: float, window_s: float, rest_s: float, device: object
) -> list[float]:
    """Return what ``window`` does, of BURSTS bursts of ``window_s`` with memory traffic for ``rest_s`` before each."""
    count = max(1, round(window_s * 1e6 / expected_us / rotation)) * rotation
    graph = capture(launch, count)
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    copied = torch.empty_like(source)
    copies = max(1, round(rest_s * 1e6 / (2 * source.numel() / COPY_BYTES_PER_US)))
    samples, clocks_mhz, energy_mj, busy_s = [], [0], 0.0, 0.0
    for _ in range(BURSTS):
        for _ in range(copies):
            copied.copy_(source)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        before_mj, began_s = pynvml.nvmlDeviceGetTotalEnergyConsumption(device), time.perf_counter()
        begin.record()
        graph.replay()
        end.record()
        while not end.query():
            clocks_mhz.append(pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM))
        busy_s += time.perf_counter() - began_s
        energy_mj += pynvml.nvmlDeviceGetTotalEnergyConsumption(device) - before_mj
        samples.append(begin.elapsed_time(end) * 1e3 / count)
    us, watts = sorted(samples)[BURSTS // 2], energy_mj / busy_s / 1e3
    return [round(us, 2), round(watts, 1), sorted(clocks_mhz)[len(clocks_mhz) // 2], round(watts * us / 1e3, 3)]


def candidates(precision: int, m: int, n: int, k: int, most: int) -> list[kernels.Config]:
    """Return the config that the product takes, then the best of every other tile by the cost model, ``most`` in all."""
    taken = kernels.choose(precision, m, n, k)
    best: dict[int, kernels.Config] = {}
    for _, config in sorted(kernels.valid_configs(precision, m, n, k), key=lambda pair: pair[0]):
        best.setdefault(config.tile, config)
    return [taken, *(config for config in best.values() if config != taken)][:most]


def problem(
    precision: int,
    x: torch.Tensor,
    plain: list[torch.Tensor],
    packed: list[kernels.PackedWeight],
    most: int,
    measure: Callable[[Callable[[int], object], int, float], list[float]],
) -> list[list[object]]:
    """Return the rows of one product.

    Args:
        x: its activations, FP16 [M, K].
        measure: what takes how to launch, over how many weights that rotates and the expected microseconds (``window``).
    """
    m, n, k = len(x), packed[0].n, packed[0].k
    expected_us = 1.2 * floor_us(m, n, k, 1 if precision else 2) + 3
    weights = packed if precision else packed[: len(plain)]
    library = "scaled_mm_fp8_tensor" if precision else "cublas_fp16"
    rotation, launch = systems(x, plain, packed)[library]
    rows: list[list[object]] = [[library, "", 1, n, k, m, *measure(launch, rotation, expected_us)]]
    for number, config in enumerate(candidates(precision, m, n, k, most)):
        values = measure(launcher(config, x, weights), len(weights), expected_us)
        name = "nestedfp_fp8" if precision else "nestedfp_fp16"
        rows.append([name, kernels.describe(config), int(number == 0), n, k, m, *values])
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows.gpu_sustained", description=__doc__)
    parser.add_argument("--model", default="mistral-24b", choices=sorted(SHAPES))
    parser.add_argument("--precision", default="fp16", choices=("fp16", "fp8"))
    parser.add_argument("--tokens", default="192,256,320,384,448,512,640,768,1024,2048")
    parser.add_argument("--configs", type=int, default=6, help="of this project, the best by the cost model")
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--rest-s", type=float, default=0.0, help="of memory traffic before each burst; 0: one window")
    parser.add_argument("--activations", default="normal", choices=("normal", "zeros"))
    parser.add_argument("--seconds", type=float, default=400.0, help="begin no further product after so many")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    if args.rest_s and args.window_s > MOST_BURST_S:
        parser.error(f"with --rest-s a window is one CUDA graph; give --window-s of at most {MOST_BURST_S}")
    pynvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    device = pynvml.nvmlDeviceGetHandleByIndex(int(visible.split(",")[0]))
    precision = kernels.FP8 if args.precision == "fp8" else kernels.FP16
    deadline_s = time.monotonic() + args.seconds

    def measure(launch: Callable[[int], object], rotation: int, expected_us: float) -> list[float]:
        if args.rest_s:
            return bursts(launch, rotation, expected_us, args.window_s, args.rest_s, device)
        return window(launch, rotation, expected_us, args.window_s, device)

    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in heading(argv))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for n, k in layers(args.model):
            plain, packed = rotating_weights(n, k)
            for m in map(int, args.tokens.split(",")):
                if time.monotonic() > deadline_s:
                    print(f"error: out of time before N={n}, K={k}, M={m}; give --seconds", file=sys.stderr)
                    return 1
                x = torch.randn(m, k, device="cuda").half() * (args.activations == "normal")
                writer.writerows(problem(precision, x, plain, packed, args.configs, measure))
                file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
