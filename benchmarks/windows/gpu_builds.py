"""Builds of the GPU kernels beside cuBLAS, in windows that take turns on one card: is one main loop faster than another?

    python -m benchmarks.windows.gpu_builds --build before=old/nestedfp_cuda_C.so --tokens 64,448 --out builds.csv

The installed build is measured too, by the name "installed". For every layer shape of a model and every token count: the config
that the installed build takes, and the best by its cost model of so many other tiles (``--configs``), in every build, and
cuBLAS in FP16. All windows of a problem take turns, ``--rounds`` times, so that the card's temperature and its power cap are
the same for all; a time is the median of the rounds. The builds need the same list of tiles. Rows
``build,config,N,K,M,us``.
"""

import argparse
import csv
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.engine.engine_shapes import SHAPES
from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_gemm import floor_us, geomean, launcher, rotating_weights
from benchmarks.kernels.gpu_timing import capture
from benchmarks.results_csv import heading
from benchmarks.windows.gpu_sustained import candidates, layers

RESULT = Path("benchmarks/results/h100-builds.csv")
COLUMNS = ("build", "config", "N", "K", "M", "us")
INSTALLED, CUBLAS = "installed", "cublas_fp16"
REPLAY_US = 2000.0  # of the launches that are captured as one graph


@contextmanager
def in_force(path: str | None) -> Iterator[None]:
    """Launch the kernels of the library at ``path``; None: of the installed one."""
    before = os.environ.pop("NESTEDFP_CUDA_LIBRARY", None)
    if path is not None:
        os.environ["NESTEDFP_CUDA_LIBRARY"] = path
    forget = (kernels.library.cache_clear, kernels.tiles.cache_clear)
    for each in forget:
        each()
    try:
        yield
    finally:
        os.environ.pop("NESTEDFP_CUDA_LIBRARY", None)
        if before is not None:
            os.environ["NESTEDFP_CUDA_LIBRARY"] = before
        for each in forget:
            each()


def turns_us(graphs: list[torch.cuda.CUDAGraph], counts: list[int], window_us: float, rounds: int) -> list[float]:
    """Microseconds of a launch of each graph: the median over ``rounds``, in each of which every graph fills a window.

    Args:
        graphs: of so many launches each (``counts``), REPLAY_US long, about.
        window_us: a third of it to warm up.
        rounds: at least one.
    """
    replays = max(3, round(window_us / REPLAY_US))
    warm = replays // 3
    samples: list[list[float]] = [[] for _ in graphs]
    for _ in range(rounds):
        for times, graph, count in zip(samples, graphs, counts, strict=True):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for i in range(replays):
                if i == warm:
                    begin.record()
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / ((replays - warm) * count))
    return [sorted(times)[len(times) // 2] for times in samples]


def problem(
    precision: int,
    m: int,
    plain: list[torch.Tensor],
    packed: list[kernels.PackedWeight],
    builds: dict[str, str | None],
    args: argparse.Namespace,
) -> list[list[object]]:
    """Return the rows of one product."""
    n, k = packed[0].n, packed[0].k
    x = torch.randn(m, k, device="cuda").half()
    count = max(1, round(REPLAY_US / (1.2 * floor_us(m, n, k, 1 if precision else 2) + 3) / len(packed))) * len(packed)
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    names: list[tuple[str, str]] = [(CUBLAS, "")]
    graphs = [capture(lambda i: torch.mm(x, plain[i % len(plain)].t(), out=out), count)]
    with in_force(None):
        configs = [(kernels.describe(config), config) for config in candidates(precision, m, n, k, args.configs)]
    weights = packed if precision else packed[: len(plain)]
    for build, path in builds.items():
        with in_force(path):
            for name, config in configs:
                names.append((build, name))
                graphs.append(capture(launcher(config, x, weights), count))
    times = turns_us(graphs, [count] * len(graphs), args.window_ms * 1e3, args.rounds)
    return [[*name, n, k, m, round(us, 2)] for name, us in zip(names, times, strict=True)]


def summarise(rows: list[list[object]]) -> None:
    """Print each build's time over the first one's, by token count: the geometric mean over shapes and configs."""
    us = {tuple(row[:5]): float(str(row[5])) for row in rows}
    builds = list(dict.fromkeys(str(row[0]) for row in rows if row[0] != CUBLAS))
    for m in sorted({int(str(row[4])) for row in rows}):
        parts = []
        for build in builds:
            keys = [key for key in us if key[0] == build and key[4] == m]
            ratios = [us[key] / us[builds[0], *key[1:]] for key in keys]
            best = [
                min(us[key] for key in keys if key[2:] == cell) / us[CUBLAS, "", *cell]
                for cell in {key[2:] for key in keys}
            ]
            parts.append(f"{build} {geomean(ratios):.3f}, its best over cuBLAS {geomean(best):.3f}")
        print(f"M {m}: {'; '.join(parts)}")


def builds_of(given: list[str]) -> dict[str, str | None]:
    """Return the path of each build by its name, the installed one first.

    Raises:
        argparse.ArgumentTypeError: unless every one is NAME=FILE and the file is there.
    """
    builds: dict[str, str | None] = {INSTALLED: None}
    for text in given:
        name, _, path = text.partition("=")
        if not name or name in (*builds, CUBLAS) or not Path(path).is_file():
            raise argparse.ArgumentTypeError(f"expected NAME=FILE with a new name and a library's file, got {text!r}")
        builds[name] = path
    return builds


def require_same_tiles(builds: dict[str, str | None]) -> None:
    """Make sure that a config means the same in all builds.

    Raises:
        argparse.ArgumentTypeError: for a build with another list of tiles.
    """
    lists = {}
    for build, path in builds.items():
        with in_force(path):
            lists[build] = kernels.tiles()
    if others := [build for build, tiles in lists.items() if tiles != lists[INSTALLED]]:
        raise argparse.ArgumentTypeError(
            f"expected builds with the installed one's list of tiles, but {others[0]} has another"
        )


def main(argv: list[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.windows.gpu_builds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--build", action="append", default=[], help="NAME=FILE of another build")
    parser.add_argument("--models", default="mistral-24b", help="comma-separated, of " + ", ".join(SHAPES))
    parser.add_argument("--precision", default="fp16", choices=("fp16", "fp8"))
    parser.add_argument("--tokens", default="16,32,64,96,128,192,256,448")
    parser.add_argument("--configs", type=int, default=2, help="tiles of each problem")
    parser.add_argument("--window-ms", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no further product after so many")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    try:
        builds = builds_of(args.build)
        require_same_tiles(builds)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    precision = kernels.FP8 if args.precision == "fp8" else kernels.FP16
    deadline_s, rows, is_whole = time.monotonic() + args.seconds, [], True
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in heading(argv))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for n, k in dict.fromkeys(shape for model in args.models.split(",") for shape in layers(model)):
            plain, packed = rotating_weights(n, k)
            for m in map(int, args.tokens.split(",")):
                if time.monotonic() > deadline_s:
                    is_whole = False
                    break
                found = problem(precision, m, plain, packed, builds, args)
                writer.writerows(found)
                file.flush()
                rows += found
            del plain, packed
            torch.cuda.empty_cache()
    summarise(rows)
    if not is_whole:
        print("error: out of time before the last products; give --seconds", file=sys.stderr)
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
