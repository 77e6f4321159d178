"""Times many configs of the GEMM on random problems: the data that the cost model is fitted to and judged on.

    python -m benchmarks.choice.gpu_time_configs --seed 1 --seconds 60 --out configs.csv

Rows ``precision,N,K,M,tile,split,tail_only,global_workspace,us``: microseconds of one GEMM in the chain of
csrc/cuda/kernels/chain.h, without the chain's other kernels. Of each problem the configs that the present cost model likes
best and some others.
"""

import argparse
import csv
import random
import sys
import time
from pathlib import Path

import torch

from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_random import draw
from benchmarks.kernels.gpu_timing import buffers_beyond_l2
from benchmarks.results_csv import gpu_description

BEST, OTHERS = 20, 8  # configs timed in each cell: best predictions, and random ones up to OTHERS_SLACK times the best
OTHERS_SLACK = 2.5
CELLS_PER_SHAPE = 6


def candidates(rng: random.Random, precision: int, m: int, n: int, k: int) -> list[kernels.Config]:
    """Choose what to time."""
    ranked = sorted(kernels.valid_configs(precision, m, n, k), key=lambda pair: pair[0])
    scale = 1 if m < 1024 else 2
    rest = [config for us, config in ranked[BEST // scale :] if us < OTHERS_SLACK * ranked[0][0]]
    return [config for _, config in ranked[: BEST // scale]] + rng.sample(rest, min(len(rest), OTHERS // scale))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rng, began_s, rows = random.Random(args.seed), time.monotonic(), 0
    with args.out.open("w", newline="") as file:
        file.write(f"# python -m benchmarks.choice.gpu_time_configs --seed {args.seed}; {gpu_description()}\n")
        writer = csv.writer(file)
        writer.writerow(["precision", "N", "K", "M", "tile", "split", "tail_only", "global_workspace", "us"])
        for n, k, counts in draw(args.seed, 100_000, CELLS_PER_SHAPE):
            weight = torch.empty(n, k, device="cuda", dtype=torch.float16).normal_(0, 0.02)
            first = kernels.pack(*kernels.split(weight)[:2])
            del weight
            weights = [first] + [
                kernels.PackedWeight(first.upper.clone(), first.lower.clone(), n, k)
                for _ in range(1, buffers_beyond_l2(n * k))
            ]
            for m in counts:
                for precision in (kernels.FP16, kernels.FP8):
                    chain = kernels.Chain(precision, m, weights)
                    for config in candidates(rng, precision, m, n, k):
                        us = chain.gemm_us(config)
                        fields = (config.tile, config.split, int(config.tail_only), int(config.global_workspace))
                        writer.writerow(["fp8" if precision else "fp16", n, k, m, *fields, f"{us:.3f}"])
                        rows += 1
                    del chain
                if time.monotonic() - began_s > args.seconds:
                    print(f"{rows} rows in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
                    return
            del weights, first
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
