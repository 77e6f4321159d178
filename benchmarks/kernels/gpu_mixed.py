"""Times exact and fast rows in one launch against two launches and one precision -> benchmarks/results/h100-rows-mixed.csv.

python -m benchmarks.kernels.gpu_mixed

Systems, all of the operator that reads a carrier: fused (the mixed GEMM), two (the FP16 GEMM of the exact rows, then the FP8 GEMM
of the fast ones), all_fp16, all_fp8. A time is of the linear layers of the whole model: three layers with weights of their own in
turn, times the model's layers, one system after the other. The config of the mixed GEMM is the fastest of those tried on each
shape before.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.kernels import gpu_kernels as kernels
from benchmarks.kernels.gpu_timing import window_us
from benchmarks.results_csv import heading, write
from nestedfp.kernels import cuda_ops, ops
from nestedfp.kernels.cuda_library import NUM_SMS_H100, PackedWeight
from nestedfp.kernels.tuning import mixed_tuning
from nestedfp.kernels.tuning.mixed_tuning import TWO_LAUNCHES, MixedChoice, MixedConfig, MixedLayer
from nestedfp.modes import Mode

MODELS = {  # layers, and (N, K) of the linears of one
    "mistral-24b": (40, {"qkv": (6144, 5120), "o": (5120, 4096), "gate_up": (65536, 5120), "down": (5120, 32768)}),
    "llama-8b": (32, {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}),
}
ROWS = ((50, 600), (50, 300), (25, 25), (32, 512), (64, 1024), (20, 400), (8, 64), (64, 256))  # exact, fast
WEIGHTS = 3  # of each layer, in turn: more than L2 holds
WINDOW_US = 50_000.0
SYSTEMS = ("fused", "two", "all_fp16", "all_fp8")


class MixedShape:
    """One layer's products of some exact rows and then some fast ones, by every system."""

    def __init__(self, exact: int, fast: int, weights: list[PackedWeight]) -> None:
        self.fast, self.n, self.k = fast, weights[0].n, weights[0].k
        mask = torch.arange(exact + fast) < exact
        modes = {"fused": lambda: ops.set_mixed(mask), "two": lambda: ops.set_mixed(mask)}
        modes |= {"all_fp16": lambda: ops.set_mode(Mode.FP16), "all_fp8": lambda: ops.set_mode(Mode.FP8)}
        self.set_rows: dict[str, Callable[[], None]] = modes
        self.layers = {}
        for system in SYSTEMS:
            self.set_rows[system]()
            self.layers[system] = MixedLayer(exact, fast, weights)
        self.fastest = self.layers["fused"].fastest(NUM_SMS_H100, always_one=True)

    def launch(self, system: str, i: int) -> None:
        """Multiply by the i-th weight in turn."""
        config: MixedConfig = self.fastest if system == "fused" else TWO_LAUNCHES
        mixed_tuning.take([MixedChoice(self.n, self.k, self.fast, config)])
        self.set_rows[system]()
        self.layers[system].product(i)


def model_ms(layers: int, shapes: list[MixedShape]) -> dict[str, float]:
    """Milliseconds of a model's linear layers by system."""

    def launch(system: str) -> Callable[[int], object]:
        return lambda i: [shape.launch(system, i) for shape in shapes]

    return {system: window_us(launch(system), WEIGHTS, WINDOW_US) * layers / 1e3 for system in SYSTEMS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h100-rows-mixed.csv"))
    args = parser.parse_args()
    cuda_ops.load()
    results = []
    for model, (layers, sizes) in MODELS.items():
        weights = [
            [kernels.pack(torch.randn(n, k, device="cuda").half() * 0.02) for _ in range(WEIGHTS)]
            for n, k in sizes.values()
        ]
        for exact, fast in ROWS:
            ms = model_ms(layers, [MixedShape(exact, fast, of_layer) for of_layer in weights])
            print(f"{model} {exact} exact, {fast} fast rows: " + ", ".join(f"{s} {t:.2f} ms" for s, t in ms.items()))
            results += [(system, model, exact, fast, f"{time_ms:.3f}") for system, time_ms in ms.items()]
            torch.cuda.empty_cache()
    write(args.out, ("system", "model", "exact_rows", "fast_rows", "ms"), results, heading())


if __name__ == "__main__":
    main()
