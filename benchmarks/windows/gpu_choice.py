"""How far the GEMM config that an engine chooses is from the best one, where a card is hot and where it comes from decodes.

    python -m benchmarks.windows.gpu_choice            # benchmarks/results/h100-choice.csv: five minutes

For every layer of a model's rank and every token count: the library, the config that is chosen once configs have been timed as
when an engine starts (role ``tuned``), the cost model's (``model``), the others that were fastest when timed (``t0`` on) or are
predicted to be (``p0`` on), and the best of some further tiles (``other``). Each is timed in two ways, in turns,
medians: in windows of 20 ms after 10 ms of the same (``window_us``), and in bursts of 20 ms after 25 ms of copies (``burst_us``),
as a step with prompts after steps of decodes. FP8 systems include this project's quantiser.
"""

import argparse
import csv
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.engine_shapes import SHAPES, rank_layers
from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_gemm import COPY_BYTES_PER_US, floor_us, geomean, launcher, rotating_weights, systems
from benchmarks.kernels.gpu_timing import capture
from benchmarks.results_csv import heading
from benchmarks.windows.gpu_builds import REPLAY_US, turns_us
from nestedfp.kernels.tuning import gemm_tuning

RESULT = Path("benchmarks/results/h100-choice.csv")
COLUMNS = (
    "model",
    "ranks",
    "precision",
    "N",
    "K",
    "M",
    "config",
    "role",
    "predicted_us",
    "timed_us",
    "window_us",
    "burst_us",
)
MODELS = "mistral-24b:1,mistral-24b:2,llama-70b:4,llama-8b:1"
LIBRARIES = {"fp16": ("cublas_fp16",), "fp8": ("scaled_mm_fp8_tensor", "scaled_mm_fp8_row")}
WINDOW_US, WINDOW_TURNS = 30e3, 3
BURST_US, REST_US, BURST_TURNS = 20e3, 25e3, 5
TUNED_FROM = 192  # tokens; below, other token counts say nothing of these
FASTEST, LIKELIEST, OTHERS, WITHIN = 6, 5, 4, 1.35
Launch = Callable[[int], object]


def roles(
    precision: int, m: int, n: int, k: int, by_model: kernels.Config, timed: dict[kernels.Config, float]
) -> dict[Any, str]:
    """Return the configs to measure, and why each is among them."""
    predicted = {config: us for us, config in kernels.valid_configs(precision, m, n, k)}
    found: dict[kernels.Config, list[str]] = defaultdict(list)
    found[kernels.choose(precision, m, n, k)].append("tuned")
    found[by_model].append("model")
    for i, config in enumerate(sorted(timed, key=timed.__getitem__)[:FASTEST]):
        found[config].append(f"t{i}")
    likely = sorted(predicted, key=predicted.__getitem__)
    for i, config in enumerate(likely[:LIKELIEST]):
        found[config].append(f"p{i}")
    seen, wanted = {config.tile for config in found}, len(found) + OTHERS
    for config in likely:
        if config.tile not in seen and len(found) < wanted and predicted[config] < WITHIN * predicted[likely[0]]:
            seen.add(config.tile)
            found[config].append("other")
    return {config: "+".join(names) for config, names in found.items()}


def bursts_us(graphs: Sequence[torch.cuda.CUDAGraph], counts: Sequence[int], copies: int) -> list[float]:
    """Return the median microseconds of a launch of each graph, once in every turn and after copies.

    Args:
        graphs: of so many launches each (``counts``).
        copies: of 256 MiB before each.
    """
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    copied = torch.empty_like(source)
    samples: list[list[float]] = [[] for _ in graphs]
    for _ in range(BURST_TURNS):
        for times, graph, count in zip(samples, graphs, counts, strict=True):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for _ in range(copies):
                copied.copy_(source)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / count)
    return [sorted(times)[len(times) // 2] for times in samples]


def graph_of(launch: Launch, rotation: int, expected_us: float, length_us: float) -> tuple[torch.cuda.CUDAGraph, int]:
    """Capture launches of about ``length_us``, whole rotations of the weights; return how many as well."""
    count = max(1, round(length_us / expected_us / rotation)) * rotation
    return capture(launch, count), count


def layer(n: int, k: int, precision: str, tokens: Sequence[int]) -> list[list[object]]:
    """Return the rows of one layer, from N on."""
    code = kernels.FP8 if precision == "fp8" else kernels.FP16
    plain, packed = rotating_weights(n, k)
    gemm_tuning.forget()
    by_model = {m: kernels.choose(code, m, n, k) for m in tokens}
    counts = [m for m in gemm_tuning.TUNED_TOKENS if m >= TUNED_FROM]
    timings = gemm_tuning.tune({(n, k): packed}, counts, kernels.NUM_SMS_H100, precisions=(code,))[n, k]
    gemm_tuning.take(timings, kernels.NUM_SMS_H100)
    copies = max(1, round(REST_US / (2 * (1 << 28) / COPY_BYTES_PER_US)))
    rows: list[list[object]] = []
    for m in tokens:
        timed = {timing.config: timing.us for timing in timings if timing.m == m}
        found = roles(code, m, n, k, by_model[m], timed)
        x = torch.randn(m, k, device="cuda").half()
        weights = packed if precision == "fp8" else packed[: len(plain)]
        expected_us = 1.2 * floor_us(m, n, k, 1 if precision == "fp8" else 2) + 3
        libraries = systems(x, plain, packed, True)
        launches = [libraries[name] for name in LIBRARIES[precision]]
        launches += [(len(weights), launcher(config, x, weights)) for config in found]
        short = [graph_of(launch, rotation, expected_us, REPLAY_US) for rotation, launch in launches]
        window_us = turns_us([graph for graph, _ in short], [count for _, count in short], WINDOW_US, WINDOW_TURNS)
        long = [graph_of(launch, rotation, expected_us, BURST_US) for rotation, launch in launches]
        burst_us = bursts_us([graph for graph, _ in long], [count for _, count in long], copies)
        names: list[list[object]] = [[name, "library", "", ""] for name in LIBRARIES[precision]]
        for config, role in found.items():
            us = kernels.predict_us(code, m, n, k, config)
            names.append(
                [kernels.describe(config), role, round(us, 2), round(timed[config], 2) if config in timed else ""]
            )
        for name, window, burst in zip(names, window_us, burst_us, strict=True):
            rows.append([n, k, m, *name, round(window, 2), round(burst, 2)])
    return rows


def summary(rows: Sequence[dict[str, str]]) -> list[str]:
    """Return lines: geometric means of the choice's time, the cost model's and the best that was timed, over the library's."""
    cells: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        cells[tuple(row[name] for name in COLUMNS[:6])].append(row)
    ratios: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for key, found in cells.items():
        for how in ("window_us", "burst_us"):
            library_us = min(float(row[how]) for row in found if row["role"] == "library")
            ours = [row for row in found if row["role"] != "library"]
            taken = {name: next(row for row in ours if name in row["role"].split("+")) for name in ("tuned", "model")}
            taken["best"] = min(ours, key=lambda row: float(row[how]))
            for name, row in taken.items():
                for group in ("all", f"{key[5]} tokens", f"{key[0]} over {key[1]}"):
                    ratios[how, group, name].append(float(row[how]) / library_us)
    groups = sorted({(how, group) for how, group, _ in ratios})
    return [
        f"{how.removesuffix('_us'):6} {group:20} "
        + ", ".join(f"{name} {geomean(ratios[how, group, name]):.3f}" for name in ("tuned", "model", "best"))
        for how, group in groups
    ]


def main(argv: list[str] | None = None) -> int:
    """Measure, write the CSV and print what it comes to; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows.gpu_choice", description=__doc__)
    parser.add_argument(
        "--models", default=MODELS, help=f"NAME:RANKS,..., of {', '.join(sorted(SHAPES))} (default: %(default)s)"
    )
    parser.add_argument("--precision", default="fp16", choices=sorted(LIBRARIES))
    parser.add_argument("--tokens", default="256,384,512,768")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    try:
        tokens = [int(count) for count in args.tokens.split(",")]
        parts = [
            (model, ranks, rank_layers(model, int(ranks)))
            for model, ranks in (part.split(":") for part in args.models.split(","))
        ]
    except (KeyError, ValueError) as error:
        parser.error(
            f"expected --tokens N,... and --models NAME:RANKS,..., got {args.tokens} and {args.models} ({error})"
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in heading(argv))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for model, ranks, layers in parts:
            for n, k in dict.fromkeys(layers.values()):
                writer.writerows([model, ranks, args.precision, *row] for row in layer(n, k, args.precision, tokens))
                file.flush()
    with args.out.open(newline="") as file:
        print("\n".join(summary(list(csv.DictReader(itertools.filterfalse(lambda line: line.startswith("#"), file))))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
