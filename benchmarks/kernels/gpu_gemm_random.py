"""Times the GPU kernels against the libraries on problems drawn from a seed: the benchmark that cannot be tuned to.

    python -m benchmarks.kernels.gpu_gemm_random --seed 7 --cells 400

Systems as in benchmarks/kernels/gpu_gemm.py (FP8 ones include the quantiser), except:
    nestedfp_*         the config that the engine would take: some are timed on each shape first, at TUNED_TOKENS
                       (nestedfp/kernels/tuning/gemm_tuning.py), and the cost model, corrected by these times, chooses at M
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

from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_gemm import rotating_weights, systems
from benchmarks.kernels.gpu_timing import window_us
from benchmarks.results_csv import heading, write
from nestedfp.kernels.tuning import gemm_tuning

SIDES = (2048, 75_000)
LARGEST_WEIGHT = 400_000_000  # elements; the largest published layer that is measured elsewhere has 336 million
TOKENS = (1, 8192)
RESULT = Path("benchmarks/results/h100-gemm-random.csv")
Launch = Callable[[int], object]
Rows = list[tuple[str, int, int, int, float]]  # system, N, K, M, microseconds


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
    timings = gemm_tuning.tune({(n, k): packed}, gemm_tuning.TUNED_TOKENS, kernels.NUM_SMS_H100)
    gemm_tuning.take(timings[n, k], kernels.NUM_SMS_H100)
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
