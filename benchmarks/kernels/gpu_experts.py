"""Times a layer of nested experts on a GPU against vLLM's own -> benchmarks/results/h200-experts.csv.

python -m benchmarks.kernels.gpu_experts --model qwen3-30b-a3b    (or mixtral-8x7b; a minute each, most of it Triton compiling)

Prints at each size whether the exact layer has the bits of vLLM's. Systems, microseconds of a whole layer without its router
(median of CUDA graph replays, weights beyond L2); one that this vLLM has no kernel for is named and left out:
    fp16          vLLM's Triton experts with FP16 weights
    exact         both planes joined in registers, vLLM's tiles
    fp8           vLLM's Triton experts with FP8 weights, scales per channel and token
    fast          the upper planes by that kernel, rounded to FP16 instead of BF16
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

from benchmarks.kernels.gpu_timing import window_us
from benchmarks.results_csv import heading, merge
from nestedfp.format import UPPER_SCALE, split
from nestedfp.vllm_plugin.weights.experts import experts_gpu
from nestedfp.vllm_plugin.weights.experts.experts_gpu import Choice, Stack

MODELS = {
    "qwen3-30b-a3b": (128, 2048, 768, 8),
    "mixtral-8x7b": (8, 4096, 14336, 2),
}  # experts, hidden, intermediate, chosen
TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
WINDOW_US = 20_000.0


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


def random_choice(tokens: int, experts: int, chosen: int) -> Choice:
    """Return what a router of random logits chooses."""
    weights, ids = torch.randn(tokens, experts, device="cuda").softmax(-1).topk(chosen)
    return Choice(weights / weights.sum(-1, keepdim=True), ids.int(), None, MoEActivation.SILU)


def systems(
    x: torch.Tensor, weights: list[torch.Tensor], stacks: list[Stack], choice: Choice
) -> dict[str, Callable[[], torch.Tensor]]:
    """Return how to run each system."""
    w13, w2 = stacks
    scales = [torch.full((len(s.upper), s.upper.shape[1], 1), 1 / UPPER_SCALE, device="cuda") for s in stacks]
    fp8 = fp8_w8a8_moe_quant_config(scales[0], scales[1], per_act_token_quant=True, per_out_ch_quant=True)
    uppers = [s.upper.view(torch.float8_e4m3fn) for s in stacks]
    routing = (choice.weights, choice.ids)
    return {
        "fp16": lambda: fused_experts(x, *weights, *routing),
        "exact": lambda: experts_gpu.exact(x, w13, w2, choice),
        "fp8": lambda: fused_experts(x, *uppers, *routing, quant_config=fp8),
        "fast": lambda: experts_gpu.fast(x, w13, w2, choice),
    }


def measured(runs: dict[str, Callable[[], torch.Tensor]]) -> dict[str, float]:
    """Return microseconds by system; says which one this vLLM lacks a kernel for, and whether exact has the bits of fp16."""
    found, times_us = {}, {}
    for name, run in runs.items():
        try:
            found[name] = run()  # compiles
            times_us[name] = window_us(lambda _, run=run: run(), 1, WINDOW_US)
        except Exception as error:  # as Triton, CUDA and vLLM say it
            print(f"{name}: no kernel that runs here, left out: {type(error).__name__}: {str(error)[:300]}", flush=True)
    if {"fp16", "exact"} <= found.keys():
        different = int((found["exact"] != found["fp16"]).sum())
        print(f"exact: {different} of {found['exact'].numel()} values have other bits than fp16's", flush=True)
    return times_us


def main() -> None:
    """Print and keep the rows of each number of tokens as soon as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen3-30b-a3b")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200-experts.csv"))
    given = parser.parse_args()
    experts, hidden, intermediate, chosen = MODELS[given.model]
    torch.manual_seed(0)
    made = [random_stack(experts, 2 * intermediate, hidden), random_stack(experts, hidden, intermediate)]
    weights, stacks = [weight for weight, _ in made], [stack for _, stack in made]
    for tokens in TOKENS:
        x = torch.randn(tokens, hidden, device="cuda", dtype=torch.float16)
        runs = systems(x, weights, stacks, random_choice(tokens, experts, chosen))
        rows = [(given.model, tokens, name, f"{us:.1f}") for name, us in measured(runs).items()]
        print(*rows, sep="\n", flush=True)
        keys = ("model", "tokens", "system")
        merge(given.out, (*keys, "us"), keys, rows, heading())


if __name__ == "__main__":
    main()
