"""Times the products of a layer of experts on a GPU with each tile that could suit it -> h200-experts.csv.

python -m benchmarks.kernels.gpu_experts --model qwen3-30b-a3b    (see --help; some minutes each)

``nestedfp.kernels.experts.expert_tiles`` was chosen on it; benchmarks.kernels.gpu_expert_layers compares whole layers with vLLM's.
Systems, microseconds of a product (CUDA graph replays; the experts chosen change from launch to launch):
    exact, fast     nested weights in each precision
Down has the activation before it, but for grouped tiles, whose gate_up has it.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from vllm import _custom_ops
from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation

from benchmarks.kernels.gpu_timing import rotated_us
from benchmarks.results_csv import heading, merge
from nestedfp.format import split
from nestedfp.kernels import cuda_ops
from nestedfp.kernels.experts import expert_tiles, experts_grouped, experts_triton
from nestedfp.vllm_plugin.weights.experts import experts_gpu
from nestedfp.vllm_plugin.weights.experts.experts_gpu import Choice, Stack

MODELS = {
    "qwen3-30b-a3b": (128, 2048, 768, 8),
    "mixtral-8x7b": (8, 4096, 14336, 2),
    "deepseek-v2-lite": (64, 2048, 1408, 6),
    "qwen2-57b-a14b": (64, 3584, 2560, 8),
    "glm-4.5-air": (128, 4096, 1408, 8),  # no tiles were chosen on this and the next
    "phi-3.5-moe": (16, 4096, 6400, 2),
}  # experts, hidden, intermediate, chosen
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
WINDOW_US = 20_000.0
MOST_TILES_HIGH, FEWEST_ROWS = 8, 2  # the lowest tiles have 16 rows
COLUMNS = ("model", "tokens", "product", "system", "tiles", "us")


def random_stack(experts: int, n: int, k: int) -> tuple[torch.Tensor, Stack]:
    """Return random weights [experts, n, k] float16, and the same nested."""
    weight = torch.empty(experts, n, k, device="cuda", dtype=torch.float16).normal_(0, 0.02)
    upper = torch.empty(experts, n, k, device="cuda", dtype=torch.uint8)
    lower = torch.empty_like(upper)
    for each, to_upper, to_lower in zip(weight, upper, lower, strict=True):
        parts = split(each)
        to_upper.copy_(parts[0])
        to_lower.copy_(experts_gpu.recode(parts[1]))
    return weight, Stack.of(upper, lower)


def random_choice(tokens: int, experts: int, chosen: int, skew: float = 0) -> Choice:
    """Return what a router of random logits chooses: of a token's, of deviation 1, and of an expert's, of deviation ``skew``."""
    logits = torch.randn(tokens, experts, device="cuda") + skew * torch.randn(experts, device="cuda")
    weights, ids = logits.softmax(-1).topk(chosen)
    return Choice(weights / weights.sum(-1, keepdim=True), ids.int(), None, MoEActivation.SILU)


Run = Callable[[Any, torch.Tensor, Any], Callable[[], None]]  # of tiles, the results, and the places of a choice


def products(a: torch.Tensor, stack: Stack, chosen: int, factors: torch.Tensor | None) -> dict[str, Run]:
    """Return how each system computes a product.

    Args:
        a: [rows, k] float16; with ``factors``, of the down product, [rows, 2 * k], gate then up.
    """
    is_down = factors is not None
    x = a.new_empty(len(a), stack.upper.shape[2]) if is_down else a

    def activate() -> None:
        if is_down:
            apply_moe_activation(MoEActivation.SILU, x, a)

    activate()
    codes, scale = _custom_ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
    upper, scales = stack.upper.view(torch.float8_e4m3fn), (scale, stack.scales)

    def activated(product: Callable[[Any, torch.Tensor, Any], None]) -> Run:
        def run(tiles: Any, c: torch.Tensor, placed: Any) -> Callable[[], None]:
            def launch() -> None:
                activate()
                product(tiles, c, placed)

            return launch

        return run

    def fast(tiles: Any, c: torch.Tensor, placed: Any) -> None:
        experts_gpu.vllms_product(codes, upper, c, factors, placed, chosen, tiles, scales)

    def few(tiles: Any, c: torch.Tensor, placed: Any) -> None:
        experts_triton.product(x, stack.upper, stack.lower, c, factors, *placed, chosen, tiles)

    def grouped(tiles: int, c: torch.Tensor, placed: Any) -> Callable[[], None]:
        valid, of_rows = len(x) * chosen, None if factors is None else factors.view(-1)
        rows = partial(experts_grouped.sorted_rows, x, placed[0], placed[2], chosen, factors=of_rows)
        of_down = rows() if is_down else None
        out = c.view(valid, -1) if is_down else c.new_empty(len(placed[0]), c.shape[-1] // 2)
        planes = stack.upper, stack.lower
        return lambda: experts_grouped.product(
            *(of_down or rows()), *planes, out, *placed, valid, tiles, is_gated=not is_down
        )

    def exact(tiles: Any, c: torch.Tensor, placed: Any) -> Callable[[], None]:
        return (grouped if isinstance(tiles, int) else activated(few))(tiles, c, placed)

    return {"exact": exact, "fast": activated(fast)}


def suits(tiles: Any, rows: float) -> bool:
    """Whether tiles are about as high as an expert has rows: higher ones compute padding, lower ones read weights as often."""
    high = tiles if isinstance(tiles, int) else tiles["BLOCK_SIZE_M"]
    return high / MOST_TILES_HIGH <= max(rows, FEWEST_ROWS) <= high * MOST_TILES_HIGH


def main() -> None:
    """Print and keep the rows of each number of tokens as soon as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen3-30b-a3b")
    parser.add_argument("--skew", type=float, default=0, help="how unequally experts are chosen: 0.5 is far from equal")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200-experts.csv"))
    given = parser.parse_args()
    experts, hidden, intermediate, chosen = MODELS[given.model]
    named_model = f"{given.model} skewed {given.skew:g}" if given.skew else given.model
    torch.manual_seed(0)
    cuda_ops.load()
    experts_gpu.fetch_whole_lines()
    measured_on = heading()  # once, since the clock it names changes
    shapes = {"gate_up": (2 * intermediate, hidden), "down": (hidden, intermediate)}
    stacks = {product: random_stack(experts, *shape)[1] for product, shape in shapes.items()}
    tried = [("exact", tiles) for tiles in (*expert_tiles.EXACT, *expert_tiles.HEIGHTS)]
    tried += [("fast", tiles) for tiles in expert_tiles.FAST]
    for tokens in TOKENS:
        choices = [random_choice(tokens, experts, chosen, given.skew) for _ in range(16 if tokens <= 16 else 4)]
        suited = [(system, tiles) for system, tiles in tried if suits(tiles, tokens * chosen / experts)]
        for product, stack in stacks.items():
            is_down = product == "down"
            a_shape = (tokens * chosen, 2 * intermediate) if is_down else (tokens, hidden)
            a = torch.randn(*a_shape, device="cuda", dtype=torch.float16)
            c = torch.empty(tokens, chosen, stack.upper.shape[1], device="cuda", dtype=torch.float16)
            runs = products(a, stack, 1 if is_down else chosen, choices[0].weights if is_down else None)
            times: dict[tuple[str, str], list[float]] = defaultdict(list)
            for system, tiles in [*suited, *reversed(suited)]:  # a GPU that gets hot gets slower
                places = experts_gpu.sorted_places if isinstance(tiles, int) else experts_gpu.places
                launches = [runs[system](tiles, c, places(choice, experts, tiles)) for choice in choices]
                times[system, expert_tiles.name(tiles)].append(rotated_us(launches, WINDOW_US))
            found = [(named_model, tokens, product, *key, f"{mean(us):.1f}") for key, us in times.items()]
            print(*found, sep="\n", flush=True)
            merge(given.out, COLUMNS, COLUMNS[:5], found, measured_on)


if __name__ == "__main__":
    main()
