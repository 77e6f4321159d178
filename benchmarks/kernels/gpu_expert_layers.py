"""Times a layer of experts on a GPU, from its rows to their sum, against vLLM's -> h200-expert-layers.csv.

python -m benchmarks.kernels.gpu_expert_layers --model qwen3-30b-a3b    (see --help; under a minute each)

Systems, microseconds of a layer (CUDA graph replays; the experts chosen change from launch to launch):
    fp16, fp8, cutlass    vLLM's Triton kernel in FP16 and in FP8, vLLM's CUTLASS kernel in FP8; scales per channel and token
    exact, fast           nested weights in each precision
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from vllm import _custom_ops
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
from vllm.model_executor.layers.fused_moe.experts.cutlass_moe import run_cutlass_moe_fp8
from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts
from vllm.model_executor.layers.fused_moe.moe_permute_unpermute import MoEPermuteScratch

from benchmarks.kernels.gpu_experts import MODELS, random_choice, random_stack
from benchmarks.kernels.gpu_timing import rotated_us
from benchmarks.results_csv import heading, merge
from nestedfp.kernels import cuda_ops
from nestedfp.vllm_plugin.weights.experts import experts_gpu
from nestedfp.vllm_plugin.weights.experts.experts_gpu import Choice, Stack

TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WINDOW_US = 12_000.0
MOST_APART = 0.02  # of the root mean square of results, between systems of the same precision
COLUMNS = ("model", "tokens", "system", "us")

Layer = Callable[[Choice], torch.Tensor]


def layers(x: torch.Tensor, weights: list[torch.Tensor], stacks: list[Stack], chosen: int) -> dict[str, Layer]:
    """Return how each system computes the layer of the rows ``x``, [rows, hidden] float16."""
    uppers = [stack.upper.view(torch.float8_e4m3fn) for stack in stacks]
    w13_scale, w2_scale = (stack.scales for stack in stacks)
    config = fp8_w8a8_moe_quant_config(w13_scale, w2_scale, per_act_token_quant=True, per_out_ch_quant=True)
    return {
        "fp16": lambda choice: fused_experts(x, *weights, choice.weights, choice.ids),
        "fp8": lambda choice: fused_experts(x, *uppers, choice.weights, choice.ids, quant_config=config),
        "cutlass": cutlass(x, *uppers, (w13_scale, w2_scale), chosen),
        "exact": lambda choice: experts_gpu.exact(x, *stacks, choice),
        "fast": lambda choice: experts_gpu.fast(x, *stacks, choice),
    }


def cutlass(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, scales: tuple[torch.Tensor, torch.Tensor], chosen: int
) -> Layer:
    """Return a layer by vLLM's CUTLASS experts; of E4M3 weights, and their scales [experts, n, 1]."""
    (rows, hidden), (experts, double, _) = x.shape, w13.shape
    scratch = MoEPermuteScratch(rows, chosen, experts, experts, x.device)

    def strides(length: int) -> torch.Tensor:
        return torch.full((experts,), length, device=x.device, dtype=torch.int64)

    operands = strides(hidden), strides(double // 2), strides(double), strides(hidden)
    workspaces = [x.new_empty(rows * chosen, max(width, hidden)) for width in (double, double // 2)]

    def run(choice: Choice) -> torch.Tensor:
        output = torch.empty_like(x)
        codes, of_rows = _custom_ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        run_cutlass_moe_fp8(
            *(output, codes, w13, w2, choice.ids, MoEActivation.SILU, experts, None, *scales, of_rows, None),
            *(*operands, *workspaces),
            expert_num_tokens=None,
            out_dtype=torch.float16,
            per_act_token=True,
            per_out_ch=True,
            use_batched_format=False,
            topk_weights=choice.weights,
            permute_scratch=scratch,
        )
        return output

    return run


def main() -> None:
    """Print and keep the rows of each number of tokens as soon as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen3-30b-a3b")
    parser.add_argument(
        "--skew", type=float, default=0.5, help="how unequally experts are chosen: 0.5 is far from equal"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200-expert-layers.csv"))
    given = parser.parse_args()
    experts, hidden, intermediate, chosen = MODELS[given.model]
    torch.manual_seed(0)
    cuda_ops.load()
    experts_gpu.fetch_whole_lines()
    measured_on = heading()  # once, since the clock it names changes
    made = [random_stack(experts, 2 * intermediate, hidden), random_stack(experts, hidden, intermediate)]
    weights, stacks = [weight for weight, _ in made], [stack for _, stack in made]
    for tokens in TOKENS:
        choices = [random_choice(tokens, experts, chosen, given.skew) for _ in range(16 if tokens <= 16 else 4)]
        runs = layers(torch.randn(tokens, hidden, device="cuda", dtype=torch.float16), weights, stacks, chosen)
        results = {system: run(choices[0]).float() for system, run in runs.items()}
        for system, peer in (("exact", "fp16"), ("fast", "fp8"), ("fast", "cutlass")):
            apart = (results[system] - results[peer]).square().mean().sqrt()
            if not apart < MOST_APART * results[peer].square().mean().sqrt():
                raise SystemExit(f"{system} and {peer} differ by {apart:.3g} at {tokens} tokens: one of them is wrong")
        times: dict[str, list[float]] = defaultdict(list)
        for system, run in [*runs.items(), *reversed(runs.items())]:  # a GPU that gets hot gets slower
            times[system].append(rotated_us([partial(run, choice) for choice in choices], WINDOW_US))
        found = [(f"{given.model} skewed {given.skew:g}", tokens, key, f"{mean(us):.1f}") for key, us in times.items()]
        print(*found, sep="\n", flush=True)
        merge(given.out, COLUMNS, COLUMNS[:3], found, measured_on)


if __name__ == "__main__":
    main()
