"""Measures which config is fastest for every shape, precision and token count up to 256; writes generated/gemm_table.inc.

python -m benchmarks.choice.gpu_tune --out csrc/cuda/generated/gemm_table.inc
"""

import argparse
import math
import sys
from pathlib import Path

import torch

from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_gemm import launcher, rotating_weights
from benchmarks.kernels.gpu_shapes import SHAPES, TABLE_TOKENS
from benchmarks.kernels.gpu_timing import buffers_beyond_l2, capture, interleaved_us
from benchmarks.results_csv import heading

CANDIDATES = 48  # best predictions that are timed
FINALISTS = 5  # best of those that are timed again, longer
SLACK = 4.0  # predictions beyond this multiple of the best are not tried

HEADER = """\
// Generated; do not edit. Fastest config by measurement:
// NESTEDFP_ROW(precision, N, K, M, tile, split, tail_only, global_workspace)
// {made}
"""


def fastest(precision: int, x: torch.Tensor, weights: list[kernels.PackedWeight]) -> tuple[kernels.Config, float]:
    """Return the fastest config for ``x`` and its microseconds, FP8 with the quantiser."""
    (m, k), n = x.shape, weights[0].n
    ranked = sorted(kernels.valid_configs(precision, m, n, k), key=lambda pair: pair[0])
    candidates = [config for us, config in ranked if us < SLACK * ranked[0][0]][:CANDIDATES]
    floor_us = max(n * k * (2 - precision) / 3e6, 2 * m * n * k / 7e8 / (1 + precision)) + 3
    count = max(1, math.ceil(600 / floor_us / len(weights))) * len(weights)
    for rounds in (3, 15):
        graphs = [capture(launcher(config, x, weights), count) for config in candidates]
        times = interleaved_us(graphs, [count] * len(graphs), rounds)
        order = sorted(range(len(times)), key=times.__getitem__)
        best_us = times[order[0]]
        candidates = [candidates[i] for i in order[:FINALISTS]]
    return candidates[0], best_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for name, (n, k) in SHAPES.items():
        _, weights = rotating_weights(n, k)
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
    args.out.write_text(HEADER.format(made="; ".join(heading())) + "".join(rows))


if __name__ == "__main__":
    main()
