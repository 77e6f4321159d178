"""Measures which config is fastest for every shape, precision and token count up to 256; writes generated/gemm_table.inc.

python -m benchmarks.choice.gpu_tune --out csrc/cuda/generated/gemm_table.inc
"""

import argparse
import datetime
import math
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_shapes import SHAPES, TABLE_TOKENS
from benchmarks.kernels.gpu_timing import buffers_beyond_l2, capture, interleaved_us

CANDIDATES = 48  # best predictions that are timed
FINALISTS = 5  # best of those that are timed again, longer
SLACK = 4.0  # predictions beyond this multiple of the best are not tried

HEADER = """\
// Generated; do not edit. Fastest config by measurement:
// NESTEDFP_ROW(precision, N, K, M, tile, split, tail_only, global_workspace)
// {gpu}, driver {driver}, clocks {clocks} (free-running), CUDA {cuda}, {date}
// python -m benchmarks.choice.gpu_tune
"""


def random_weights(n: int, k: int, count: int) -> list[kernels.PackedWeight]:
    """Return ``count`` packed weights of independent normal values."""
    packed = []
    for _ in range(count):
        weight = torch.empty(n, k, device="cuda", dtype=torch.float16).normal_(0, 0.02)
        packed.append(kernels.pack(*kernels.split(weight)[:2]))
    return packed


def fastest(precision: int, x: torch.Tensor, weights: list[kernels.PackedWeight]) -> tuple[kernels.Config, float]:
    """Return the fastest config for ``x`` and its microseconds, FP8 with the quantiser."""
    (m, k), n = x.shape, weights[0].n
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    codes = torch.empty(m, weights[0].upper.shape[1], device="cuda", dtype=torch.uint8)
    scale = torch.empty(m, device="cuda")

    def launch(config: kernels.Config, i: int) -> None:
        weight = weights[i % len(weights)]
        if precision == kernels.FP8:
            kernels.quantize(x, codes, scale)
            kernels.gemm(config, codes, weight, out, scale=scale)
        else:
            kernels.gemm(config, x, weight, out)

    ranked = sorted(kernels.valid_configs(precision, m, n, k), key=lambda pair: pair[0])
    candidates = [config for us, config in ranked if us < SLACK * ranked[0][0]][:CANDIDATES]
    floor_us = max(n * k * (2 - precision) / 3e6, 2 * m * n * k / 7e8 / (1 + precision)) + 3
    count = max(1, math.ceil(600 / floor_us / len(weights))) * len(weights)
    for rounds in (3, 15):
        graphs = [capture(lambda i, config=config: launch(config, i), count) for config in candidates]
        times = interleaved_us(graphs, [count] * len(graphs), rounds)
        order = sorted(range(len(times)), key=times.__getitem__)
        best_us = times[order[0]]
        candidates = [candidates[i] for i in order[:FINALISTS]]
    return candidates[0], best_us


def environment() -> dict[str, str]:
    """GPU, driver, clocks, versions and date, for headers."""
    query = "name,driver_version,clocks.sm,clocks.mem"
    answer = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    name, driver, sm, memory = (field.strip() for field in answer.stdout.splitlines()[0].split(","))
    return {
        "gpu": name,
        "driver": driver,
        "clocks": f"{sm} SM / {memory} memory",
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for name, (n, k) in SHAPES.items():
        weights = random_weights(n, k, buffers_beyond_l2(n * k))
        for precision in (kernels.FP16, kernels.FP8):
            used = weights[: buffers_beyond_l2(n * k * (2 - precision))]
            for m in TABLE_TOKENS:
                config, us = fastest(precision, torch.randn(m, k, device="cuda").half(), used)
                kind = "kFp8" if precision else "kFp16"
                fields = f"{kind}, {n}, {k}, {m}, {config.tile}, {config.split}, "
                fields += f"{int(config.tail_only)}, {int(config.global_workspace)}"
                rows.append(f"NESTEDFP_ROW({fields})  // {kernels.describe(config)} {us:.1f} us\n")
        print(name, "done", file=sys.stderr, flush=True)
        del weights, used
        torch.cuda.empty_cache()
    args.out.write_text(HEADER.format(**environment()) + "".join(rows))


if __name__ == "__main__":
    main()
