"""How fast weights become planes and planes weights, and are counted, against a plain copy of the same bytes, in one run.

    python -m benchmarks.weights.conversion

Floor: each weight is read once (2 bytes) and written once (2 bytes), which is what a copy does. Prints and writes
``system,n,k,ms,gb_per_s`` (bytes of the FP16 weight over time) to benchmarks/results/conversion.csv.
"""

import csv
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

from nestedfp.kernels import ops
from nestedfp.nested_weight import NestedWeight, nest

RESULT = Path(__file__).parents[1] / "results" / "conversion.csv"
SHAPES = ((4096, 4096), (28672, 4096))
REPEATS = 7


def timed_ms(run: Callable[[], object]) -> float:
    """Return the median duration of ``run``, in milliseconds, after one warm-up."""
    run()
    times = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        run()
        times.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(times)


def main() -> int:
    """Measure; return the exit status."""
    rows = []
    for n, k in SHAPES:
        weight = (torch.randn(n, k) * 0.05).clamp(-1.7, 1.7).half()
        nested = nest(weight)
        assert isinstance(nested, NestedWeight)
        systems: dict[str, Callable[[], object]] = {
            "copy": weight.clone,
            "nest": lambda weight=weight: nest(weight),
            "join": lambda nested=nested: ops.join(nested.upper, nested.lower),
            "histogram": lambda weight=weight: ops.histogram(weight),
            "pack": lambda nested=nested: ops.pack(nested.upper, nested.lower),
        }
        for system, run in systems.items():
            ms = timed_ms(run)
            rows.append(
                {"system": system, "n": n, "k": k, "ms": round(ms, 3), "gb_per_s": round(n * k * 2 / ms / 1e6, 2)}
            )
            print(f"{system:9} {n}x{k}: {ms:8.2f} ms, {rows[-1]['gb_per_s']:6.2f} GB/s of FP16 weight")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    with RESULT.open("w", newline="") as file:
        threads, isa = torch.get_num_threads(), ops.cpu_isa()
        file.write(
            f"# {datetime.now(UTC):%Y-%m-%d} python -m benchmarks.weights.conversion; {threads} threads, {isa}\n"
        )
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
