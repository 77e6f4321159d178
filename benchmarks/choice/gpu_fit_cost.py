"""Fits the GEMM's cost model to timed configs, writes csrc/cuda/generated/gemm_cost.inc, and judges the choice on other timings.

    python -m benchmarks.choice.gpu_time_configs --seed 101 --out fit.csv         # on the GPU, and once more with another seed
    python -m benchmarks.choice.gpu_fit_cost --fit fit.csv --judge held.csv       # anywhere; needs SciPy

Least squares of log(predicted / measured), softened for outliers, over all constants of csrc/cuda/config/gemm_cost.h. A config
far from the best of its problem counts less: the model must order the good ones. Judged by regret: the time of the config that
the model likes best over the time of the fastest, among those timed for a problem.
"""

import argparse
import csv
import ctypes
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.kernels import gpu_kernels as kernels

PRECISIONS = {"fp16": kernels.FP16, "fp8": kernels.FP8}
BANDS = {"1..64": (1, 64), "65..192": (65, 192), "193..768": (193, 768), "769..8192": (769, 8192)}
DOUBLES = ctypes.POINTER(ctypes.c_double)
ROUNDS = 40
RESULT = Path(__file__).parents[2] / "csrc/cuda/generated/gemm_cost.inc"


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file of gpu_time_configs."""
    with path.open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


class Timings:
    """Timed configs as arrays: ``problems`` [rows, 8] as nestedfp_predict_with takes them, ``us`` [rows]."""

    def __init__(self, paths: list[Path]) -> None:
        rows = [row for path in paths for row in read(path)]
        fields = ("M", "N", "K", "tile", "split", "tail_only", "global_workspace")
        table = [[PRECISIONS[row["precision"]], *(int(row[name]) for name in fields)] for row in rows]
        self.problems = np.ascontiguousarray(table, dtype=np.int64)
        self.us = np.array([float(row["us"]) for row in rows])
        cells = defaultdict(list)
        for i, row in enumerate(self.problems):
            cells[tuple(int(value) for value in row[:4])].append(i)
        self.cells = {cell: np.array(found) for cell, found in cells.items()}
        best = np.empty_like(self.us)
        for found in self.cells.values():
            best[found] = self.us[found].min()
        self.weight = (self.us / best) ** -3.0

    def predict(self, constants: np.ndarray) -> np.ndarray:
        """Microseconds of every row."""
        us = np.empty(len(self.us))
        lib = kernels.library()
        constants = np.ascontiguousarray(constants)
        lib.nestedfp_predict_with(
            constants.ctypes.data_as(DOUBLES),
            self.problems.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)),
            len(us),
            kernels.NUM_SMS_H100,
            us.ctypes.data_as(DOUBLES),
        )
        return us

    def regrets(self, predicted: np.ndarray) -> dict[tuple[int, ...], float]:
        """By problem: how much longer the chosen config takes than the fastest timed one, as a ratio."""
        return {
            cell: self.us[found[predicted[found].argmin()]] / self.us[found].min() for cell, found in self.cells.items()
        }


def in_force() -> np.ndarray:
    """Return the constants that are compiled in."""
    lib = kernels.library()
    constants = np.empty(lib.nestedfp_common_constants() + lib.nestedfp_tile_constants() * len(kernels.tiles()))
    lib.nestedfp_cost_constants(constants.ctypes.data_as(DOUBLES))
    return constants


def fit(timings: Timings, start: np.ndarray) -> np.ndarray:
    """Return fitted constants. All are positive, so their logarithms vary."""
    from scipy.optimize import least_squares

    start = np.maximum(start, 1e-4)
    measured, weight = np.log(timings.us), np.sqrt(timings.weight)

    def residuals(logs: np.ndarray) -> np.ndarray:
        error = (np.log(timings.predict(np.exp(logs))) - measured) * weight
        return np.concatenate([error, 0.02 * (logs - np.log(start))])  # a tile that nobody timed keeps what it had

    low, high = np.log(start) - 3, np.log(start) + 3
    found = least_squares(residuals, np.log(start), bounds=(low, high), loss="soft_l1", f_scale=0.05, max_nfev=ROUNDS)
    return np.exp(found.x)


def report(name: str, timings: Timings, constants: np.ndarray) -> None:
    """Print regret and error by precision and band."""
    predicted = timings.predict(constants)
    regrets = timings.regrets(predicted)
    for precision, kind in PRECISIONS.items():
        for band, (low, high) in {**BANDS, "all": (1, 8192)}.items():
            values = sorted(r for (p, m, _, _), r in regrets.items() if p == kind and low <= m <= high)
            rows = (timings.problems[:, 0] == kind) & (timings.problems[:, 1] >= low) & (timings.problems[:, 1] <= high)
            error = np.abs(np.log(predicted[rows] / timings.us[rows]))
            mean = math.exp(sum(map(math.log, values)) / len(values))
            print(
                f"{name} {precision} M {band:9s} {len(values):3d} problems: choice/best mean {mean:.3f}, "
                f"p95 {values[math.ceil(0.95 * len(values)) - 1]:.3f}, worst {values[-1]:.3f}; "
                f"|log error| median {np.median(error):.3f}"
            )


def write(path: Path, constants: np.ndarray, comment: str) -> None:
    """Write the constants as gemm_cost.cpp includes them."""
    common, each = kernels.library().nestedfp_common_constants(), kernels.library().nestedfp_tile_constants()
    lines = [f"// {comment}\n", "{" + ", ".join(f"{value:.5g}" for value in constants[:common]) + "},\n", "{\n"]
    for i, tile in enumerate(kernels.tiles()):
        values = ", ".join(f"{value:.4g}" for value in constants[common + each * i : common + each * (i + 1)])
        lines.append(f"    {{{values}}},  // {'FP8' if tile.precision else 'FP16'} {tile}\n")
    path.write_text("".join([*lines, "},\n"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--fit", type=Path, nargs="*", default=[], help="timings to fit to; none: judge what is compiled"
    )
    parser.add_argument("--judge", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    constants = in_force()
    if args.fit:
        timings = Timings(args.fit)
        constants = fit(timings, constants)
        report("fit ", timings, constants)
        note = f"Fitted to {len(timings.us)} timings of {len(timings.cells)} problems on an H100: "
        write(args.out, constants, note + "benchmarks/choice/gpu_fit_cost.py. Do not edit.")
    report("held", Timings(args.judge), constants)


if __name__ == "__main__":
    main()
