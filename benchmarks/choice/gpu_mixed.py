"""Times exact and fast rows in one launch against two launches and one precision -> benchmarks/results/h100-rows-mixed.csv.

python -m benchmarks.choice.gpu_mixed

Systems, all without the quantiser: fused (the mixed GEMM), two (the FP16 GEMM of the exact rows, then the FP8 GEMM of the
fast ones), all_fp16, all_fp8. A time is of the linear layers of the whole model: three layers with weights of their own,
replayed as CUDA graphs, one system after the other, times the model's layers over three. The config of the mixed GEMM is the
fastest of those tried on each shape before.
"""

import argparse
import csv
import ctypes
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.choice.gpu_tune import environment
from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_timing import capture, interleaved_us

MODELS = {  # layers, and (N, K) of the linears of one
    "mistral-24b": (40, {"qkv": (6144, 5120), "o": (5120, 4096), "gate_up": (65536, 5120), "down": (5120, 32768)}),
    "llama-8b": (32, {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}),
}
ROWS = ((50, 600), (50, 300), (25, 25), (32, 512), (64, 1024), (20, 400), (8, 64), (64, 256))  # exact, fast
WEIGHTS = 3  # of each layer, in turn: more than L2 holds
SPLITS = (1, 0, -1, 2, 3)  # of K: none, Stream-K, Stream-K of the last wave, parts
MOST_WASTE = 0.35  # of the tokens of the fast rows' tiles, for a tile that is tried

Launch = Callable[[int], object]  # of the i-th weight in turn
Config = tuple[int, int, int, int]  # tile, blocks of mixed tiles, split of them, of the rest (csrc/cuda/config/mixed.h)


def mixed_tiles() -> list[tuple[int, int, int, int]]:
    """Exact and fast tokens of each mixed tile, tokens of the rest's tiles, multicast CTAs."""
    found = []
    for i in range(kernels.library().nestedfp_mixed_tile_count()):
        fields = (ctypes.c_int * 4)()
        kernels.library().nestedfp_mixed_tile(i, fields)
        found.append(tuple(fields))
    return found


class MixedShape:
    """One layer's products of some exact rows and then some fast ones, by every system."""

    def __init__(self, exact: int, fast: int, weights: list[kernels.PackedWeight]):
        self.exact, self.fast, self.weights = exact, fast, weights
        self.n, self.k = weights[0].n, weights[0].k
        rows = exact + fast
        self.x = torch.randn(rows, self.k, device="cuda").half()
        self.codes = torch.empty(rows, self.k, device="cuda", dtype=torch.uint8)
        self.scale = torch.empty(rows, device="cuda")
        kernels.quantize(self.x, self.codes, self.scale)
        self.carrier = self.x.clone()
        self.carrier.view(torch.uint8)[exact:, : self.k] = self.codes[exact:]
        self.out = torch.empty(rows, self.n, device="cuda", dtype=torch.float16)
        self.workspace = torch.empty(160 << 20, device="cuda", dtype=torch.uint8)

    def fused(self, config: Config) -> Launch:
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (self.carrier, self.scale, self.out, self.workspace)]
        x, scale, out, workspace = pointers
        sizes = [ctypes.c_int64(size) for size in (self.exact, self.fast, self.n, self.k)]
        row_numbers = [
            ctypes.c_int64(number) for number in (self.k, len(self.x), 0, self.exact)
        ]  # x pitch, rows, firsts

        def launch(i: int) -> None:
            weight = self.weights[i % len(self.weights)]
            planes = ctypes.c_void_p(weight.upper.data_ptr()), ctypes.c_void_p(weight.lower.data_ptr())
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            how = kernels.NUM_SMS_H100, (ctypes.c_int * 4)(*config)
            error = kernels.library().nestedfp_mixed_gemm(
                *sizes, *how, x, *row_numbers, scale, *planes, None, out, workspace, 1, stream
            )
            kernels.check(error, f"mixed GEMM {config}")

        return launch

    def two(self) -> Launch:
        exact = kernels.choose(kernels.FP16, self.exact, self.n, self.k)
        fast = kernels.choose(kernels.FP8, self.fast, self.n, self.k)

        def launch(i: int) -> None:
            weight, e = self.weights[i % len(self.weights)], self.exact
            kernels.gemm(exact, self.x[:e], weight, self.out[:e])
            kernels.gemm(fast, self.codes[e:], weight, self.out[e:], scale=self.scale[e:])

        return launch

    def whole(self, precision: int) -> Launch:
        config = kernels.choose(precision, len(self.x), self.n, self.k)
        operands = (self.x, None) if precision == kernels.FP16 else (self.codes, self.scale)
        weights = self.weights
        return lambda i: kernels.gemm(config, operands[0], weights[i % len(weights)], self.out, scale=operands[1])

    def configs(self) -> Iterator[Config]:
        """Configs of the mixed GEMM that are worth a try."""
        library = kernels.library()
        library.nestedfp_mixed_workspace.restype = ctypes.c_int64
        sizes = [ctypes.c_int64(size) for size in (self.exact, self.fast, self.n, self.k)]
        for tile, (exact, fast, tokens, ctas) in enumerate(mixed_tiles()):
            tiles = -(-max(0, self.fast - fast) // tokens)
            if tiles * tokens - (self.fast - fast) > MOST_WASTE * tiles * tokens and tiles:
                continue
            blocks = kernels.NUM_SMS_H100 // ctas
            cost = 2 * exact + fast + 96  # of a mixed tile, in FP8 tokens
            share = round(blocks * cost / (cost + tiles * (tokens + 32)))
            counts = range(share - 8 // ctas, share + 8 // ctas + 1, 4 // ctas) if tiles else (0,)
            for count, *splits in itertools.product(counts, SPLITS, SPLITS if tiles else (1,)):
                config = (tile, count, *splits)
                size = library.nestedfp_mixed_workspace(*sizes, kernels.NUM_SMS_H100, (ctypes.c_int * 4)(*config))
                if 0 <= size <= self.workspace.numel():
                    yield config

    def fastest(self) -> Config:
        count = max(1, round(9e9 / (self.n * self.k * 2)))  # some milliseconds
        us = {config: interleaved_us([capture(self.fused(config), count)], [count], 3)[0] for config in self.configs()}
        best = sorted(us, key=lambda config: us[config])[:4]
        again = interleaved_us([capture(self.fused(config), 3 * count) for config in best], [3 * count] * len(best), 5)
        return best[again.index(min(again))]

    def check(self, config: Config) -> None:
        """Compare the mixed GEMM with two launches."""
        self.two()(0)
        expected = self.out.float()
        self.out.fill_(torch.nan)
        self.fused(config)(0)
        for rows in (slice(0, self.exact), slice(self.exact, None)):
            error = float((self.out[rows].float() - expected[rows]).norm() / expected[rows].norm())
            if not error < 1e-2:
                raise RuntimeError(
                    f"mixed GEMM {config}: expected the products of two launches, got an error of {error}"
                )


def model_ms(layers: int, shapes: list[MixedShape]) -> dict[str, float]:
    """Milliseconds of a model's linear layers by system."""
    configs = [shape.fastest() for shape in shapes]
    for shape, config in zip(shapes, configs, strict=True):
        shape.check(config)
    systems = {
        "fused": [shape.fused(config) for shape, config in zip(shapes, configs, strict=True)],
        "two": [shape.two() for shape in shapes],
        "all_fp16": [shape.whole(kernels.FP16) for shape in shapes],
        "all_fp8": [shape.whole(kernels.FP8) for shape in shapes],
    }
    graphs = [capture(lambda i, ls=ls: [launch(i) for launch in ls], WEIGHTS) for ls in systems.values()]
    us = interleaved_us(graphs, [WEIGHTS] * len(graphs), 15)
    return {system: time_us * layers / 1e3 for system, time_us in zip(systems, us, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h100-rows-mixed.csv"))
    args = parser.parse_args()
    results = []
    for model, (layers, sizes) in MODELS.items():
        weights = [
            [kernels.pack(*kernels.split(torch.randn(n, k, device="cuda").half() * 0.02)[:2]) for _ in range(WEIGHTS)]
            for n, k in sizes.values()
        ]
        for exact, fast in ROWS:
            ms = model_ms(layers, [MixedShape(exact, fast, of_layer) for of_layer in weights])
            print(f"{model} {exact} exact, {fast} fast rows: " + ", ".join(f"{s} {t:.2f} ms" for s, t in ms.items()))
            results += [(system, model, exact, fast, f"{time_ms:.3f}") for system, time_ms in ms.items()]
            torch.cuda.empty_cache()
    about = environment()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        file.write(f"# {about['gpu']}, driver {about['driver']}, clocks {about['clocks']} at the end, free-running\n")
        file.write(f"# torch {about['torch']}, CUDA {about['cuda']}, {about['date']}\n")
        file.write("# python -m benchmarks.choice.gpu_mixed\n")
        writer = csv.writer(file)
        writer.writerow(["system", "model", "exact_rows", "fast_rows", "ms"])
        writer.writerows(results)


if __name__ == "__main__":
    main()
