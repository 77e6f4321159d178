"""Nested experts on a GPU: exact ones compute what vLLM's Triton experts do, fast ones are close, and an engine serves both.

Run: ``pytest -q -m gpu tests/kernels/test_gpu_moe.py``
"""

import ctypes
import json
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import adapters
import pytest
import torch
from greedy import assert_same_greedy_tokens
from interleaving import interleaved
from processes import run_json

from nestedfp.format import split, upper_to_float
from nestedfp.nested_weight import nest_together

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from quantizer_reference import quantize_per_token
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    from benchmarks.kernels import gpu_experts
    from nestedfp.kernels.experts import expert_tiles, experts_grouped, experts_triton
    from nestedfp.vllm_plugin.weights.experts import experts_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper_operators")]
# Experts, hidden, intermediate, chosen. The last two go round the stages of the grouped products.
SHAPES = [(8, 256, 128, 2), (16, 512, 320, 4), (8, 2048, 768, 2), (8, 576, 768, 2)]


def made(shape):
    experts, hidden, intermediate, _ = shape
    stacks = [gpu_experts.random_stack(experts, *size) for size in ((2 * intermediate, hidden), (hidden, intermediate))]
    return [weight for weight, _ in stacks], [stack for _, stack in stacks]


@pytest.mark.parametrize("rows", [1, *expert_tiles.HEIGHTS])
def test_every_weight_within_the_range_is_joined_at_every_place(rows):
    bits = torch.arange(1 << 16, dtype=torch.int32)
    bits = bits[(bits & 0x7FFF) <= 0x3F00]
    experts, n, k = 4, 128, 128 if rows != 64 else 64  # 64: one step alone
    assert len(bits) <= experts * n * k
    spread = torch.stack([bits.roll(i) for i in range(3)]).flatten()[: experts * n * k]
    weight = spread.to(torch.int16).view(torch.float16).view(experts, n, k)
    upper, lower = split(weight)
    a = torch.eye(k, dtype=torch.float16, device="cuda")
    ids = torch.arange(experts, dtype=torch.int32, device="cuda").repeat(k, 1)
    choice = experts_gpu.Choice(None, ids, None, None)
    tiles = rows if rows > 1 else expert_tiles.exact(1, [(experts, n, k)])
    c = torch.empty(k, experts, n, dtype=torch.float16, device="cuda")
    planes = (upper.cuda(), experts_triton.recode(lower).cuda())
    if isinstance(tiles, int):
        placed = experts_gpu.sorted_places(choice, experts, tiles)
        of_rows = experts_grouped.sorted_rows(a, placed[0], placed[2], experts)
        experts_grouped.product(*of_rows, *planes, c.view(-1, n), *placed, len(a) * experts, tiles)
    else:
        (tiles,) = tiles
        experts_triton.product(a, *planes, c, None, *experts_gpu.places(choice, experts, tiles), experts, tiles)
    assert torch.equal(c.permute(1, 2, 0).cpu(), weight)


def fast_by_definition(x, uppers, listed, choice):
    """Upper planes with each row of activations rounded to E4M3, listed weights with the row as it is."""

    def product(row, stack, expert):
        codes, scales = quantize_per_token(row)
        return codes.float() * scales.float() @ uppers[stack][expert].T + row.float() @ listed[stack][expert].float().T

    sums = torch.zeros(*x.shape, device="cuda")
    for token in range(len(x)):
        for weight, expert in zip(choice.weights[token], choice.ids[token].tolist(), strict=True):
            gate, up = product(x[token : token + 1], 0, expert).chunk(2, -1)
            sums[token] += weight * product((torch.nn.functional.silu(gate) * up).half(), 1, expert)[0]
    return sums


@pytest.mark.parametrize("tokens", [1, 33, 300, 700])
def test_weights_beyond_the_range_are_multiplied_as_they_are(tokens):
    torch.manual_seed(tokens)
    experts, hidden, _, chosen = SHAPES[2]
    weights, _ = made(SHAPES[2])
    for weight in weights:
        weight[::2, 7, ::50] = 2.5
        weight[1, :, 3] = -3.0
        weight[-1, -1, -1] = 9.0
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.float16)
    choice = gpu_experts.random_choice(tokens, experts, chosen)
    stacks = []
    for weight in weights:
        (nested,) = nest_together(weight.flatten(0, 1))
        stacks.append(experts_gpu.Stack.of(*experts_gpu.packed(nested, weight.shape), nested))
    expected = fused_experts(x.clone(), *weights, choice.weights, choice.ids)
    exact = experts_gpu.exact(x, *stacks, choice)
    assert torch.allclose(exact, expected, rtol=4e-3, atol=4e-3 * float(expected.float().std()))
    listed = [weight - weight.clamp(-1.75, 1.75) for weight in weights]
    sums = fast_by_definition(x, [upper_to_float(stack.upper) for stack in stacks], listed, choice)
    fast = experts_gpu.fast(x, *stacks, choice).float()
    assert (fast - sums).square().mean().sqrt() < 0.02 * sums.square().mean().sqrt()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 7, 33, 130, 300, 700])
def test_exact_experts_compute_what_vllms_do_and_fast_ones_are_close(shape, tokens):
    torch.manual_seed(tokens)
    experts, hidden, _, chosen = shape
    weights, stacks = made(shape)
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.float16)
    choice = gpu_experts.random_choice(tokens, experts, chosen)
    expected = fused_experts(x.clone(), *weights, choice.weights, choice.ids)
    exact = experts_gpu.exact(x, *stacks, choice)  # the same products, added up in another order
    assert torch.allclose(exact, expected, rtol=2e-3, atol=2e-3 * float(expected.float().std()))
    sums = fast_by_definition(
        x, [upper_to_float(stack.upper) for stack in stacks], [0.0 * each for each in weights], choice
    )
    fast = experts_gpu.fast(x, *stacks, choice).float()
    assert (fast - sums).square().mean().sqrt() < 0.02 * sums.square().mean().sqrt()
    assert 0.01 < (fast - expected.float()).square().mean().sqrt() / expected.float().std() < 0.08


def test_another_activation_than_silu_is_vllms_own():
    torch.manual_seed(2)
    weights, stacks = made(SHAPES[1])
    x = torch.randn(200, SHAPES[1][1], device="cuda", dtype=torch.float16)
    choice = replace(gpu_experts.random_choice(200, SHAPES[1][0], SHAPES[1][3]), activation=MoEActivation.GELU)
    expected = fused_experts(x.clone(), *weights, choice.weights, choice.ids, activation=MoEActivation.GELU)
    exact = experts_gpu.exact(x, *stacks, choice)
    assert torch.allclose(exact, expected, rtol=2e-3, atol=2e-3 * float(expected.float().std()))


@pytest.mark.parametrize("tokens", [50, 130, 300, 3000])
def test_experts_of_other_ranks_add_nothing(tokens):
    shape = SHAPES[2]
    torch.manual_seed(1)
    weights, stacks = made(shape)
    x = torch.randn(tokens, shape[1], device="cuda", dtype=torch.float16)
    choice = gpu_experts.random_choice(tokens, shape[0], shape[3])
    expert_map = torch.full((shape[0],), -1, dtype=torch.int32, device="cuda")
    expert_map[4:] = torch.arange(4, dtype=torch.int32, device="cuda")
    here = [experts_gpu.Stack.of(stack.upper[4:].contiguous(), stack.lower[4:].contiguous()) for stack in stacks]
    masked = torch.where(choice.ids >= 4, choice.weights, 0.0)
    torch.full((1 << 26,), torch.nan, dtype=torch.float16, device="cuda")  # what torch then allocates is full of NaNs
    expected = fused_experts(x.clone(), *weights, masked, choice.ids)
    mapped = experts_gpu.Choice(choice.weights, choice.ids, expert_map, choice.activation)
    assert torch.allclose(
        experts_gpu.exact(x, *here, mapped), expected, rtol=2e-3, atol=2e-3 * float(expected.float().std())
    )
    fast = experts_gpu.fast(x, *here, mapped)
    assert (fast - expected).float().square().mean().sqrt() < 0.08 * expected.float().std()


@pytest.mark.parametrize("tile_rows", expert_tiles.HEIGHTS)
def test_the_result_of_gates_and_ups_is_vllms_own_activation(tile_rows):
    experts, hidden, intermediate, chosen = SHAPES[1]
    _, (stack, _) = made(SHAPES[1])
    choice = gpu_experts.random_choice(300, experts, chosen)
    ids, _, padded = placed = experts_gpu.sorted_places(choice, experts, tile_rows)
    x, scales = experts_grouped.sorted_rows(
        torch.randn(300, hidden, device="cuda", dtype=torch.float16) * 9, ids, padded, chosen, factors=choice.weights
    )
    both, result = x.new_empty(300 * chosen, 2 * intermediate), x.new_full((len(ids), intermediate), torch.nan)
    experts_grouped.product(x, None, stack.upper, stack.lower, both, *placed, len(both), tile_rows)
    experts_grouped.product(x, None, stack.upper, stack.lower, result, *placed, len(both), tile_rows, is_gated=True)
    expected = x.new_empty(300 * chosen, intermediate)
    apply_moe_activation(MoEActivation.SILU, expected, both)
    kept = (ids < len(both)) & (torch.arange(len(ids), device="cuda") < padded)
    same = result[kept] == interleaved(expected)[ids[kept].long()]
    assert same.float().mean() > 0.999, "but for the last bit of an exponential"
    assert result[~kept].isnan().all(), "what fills up a tile stays as it is"
    assert torch.equal(scales[kept], choice.weights.flatten()[ids[kept].long()])


def test_the_l2_fetches_whole_lines():
    experts_gpu.fetch_whole_lines()
    limit = ctypes.c_size_t()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetLimit(ctypes.byref(limit), experts_gpu.MAX_L2_FETCH_GRANULARITY) == 0
    assert limit.value == experts_gpu.LINE_BYTES


def tiny_model(folder):
    """Write a random Qwen3-MoE model; return its folder and tensors."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugin"))
    from test_experts import FAMILIES, random_tensors, write

    tensors = random_tensors("qwen3")  # some beyond 1.75
    return write(folder, json.loads(json.dumps(FAMILIES["qwen3"][0])), tensors), tensors


def adapter(folder, tensors, seed):
    """Write an adapter of every linear layer, those of the experts too."""
    layers = [name for name in tensors if "_proj" in name]
    generator, found = torch.Generator().manual_seed(seed), {}
    for name in layers:
        n, k = tensors[name].shape
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        found[f"{stem}.lora_A.weight"] = (torch.randn(4, k, generator=generator) * k**-0.5).half()
        found[f"{stem}.lora_B.weight"] = (torch.randn(n, 4, generator=generator) * 0.1).half()
    return adapters.save(folder, found)


@pytest.mark.engine
def test_adapters_of_experts_change_exact_and_fast_answers_as_plain_vllms(tmp_path):
    folder, tensors = tiny_model(tmp_path / "model")
    from test_experts import PROMPTS

    served = [None, *((name, i, adapter(tmp_path / name, tensors, i)) for i, name in ((1, "a"), (2, "b")))]
    each = {"prompts": PROMPTS[:1] * 3, "max_tokens": 12, "adapters": served}
    common = {
        "model": str(folder),
        "enable_lora": True,
        "max_loras": 2,
        "max_lora_rank": 8,
        "gpu_memory_utilization": 0.3,
        "enable_prefix_caching": False,
    }
    runs = [{"mode": "fp16", **each}, {"mode": "fp8", **each}]
    nested = {"engines": [{**common, "quantization": "nestedfp"}], "runs": runs}
    ((exact, fast),) = run_json("engine_scenario.py", nested)["engines"]
    plain = {"engines": [common], "runs": runs[:1], "nested": False}
    ((expected,),) = run_json("engine_scenario.py", plain)["engines"]
    assert_same_greedy_tokens(exact, expected)
    firsts = [each[0][0] for each in exact["logprobs"]]
    assert len(set(firsts)) == 3, "every adapter changes the answer"
    assert firsts != [each[0][0] for each in fast["logprobs"]] == [pytest.approx(first, abs=0.25) for first in firsts]


@pytest.mark.engine
@pytest.mark.parametrize("ranks", [(1, False), (2, False), (2, True)], ids=["one rank", "TP", "TP and EP"])
def test_an_engine_serves_both_classes_with_nested_experts(ranks, tmp_path):
    if torch.cuda.device_count() < ranks[0]:
        pytest.skip("needs two GPUs")
    folder, _ = tiny_model(tmp_path / "model")
    from test_experts import PROMPTS

    runs = [
        {"mode": "fp16", "prompts": PROMPTS},
        {"mode": "fp8", "prompts": PROMPTS},
        {"mode": "fp8", "prompts": PROMPTS, "extra_args": {"precision": "fp16"}},
        {"mode": "fp16", "prompts": PROMPTS},
    ]
    common = {
        "model": str(folder),
        "enable_prefix_caching": False,
        "moe_backend": "triton",
        "gpu_memory_utilization": 0.3,
        **dict(zip(("tensor_parallel_size", "enable_expert_parallel"), ranks, strict=True)),
    }
    nested = {**common, "quantization": "nestedfp"}
    plain = {"engines": [common], "runs": runs[:1], "nested": False}
    ((exact, fast, pinned, again),) = run_json("engine_scenario.py", {"engines": [nested], "runs": runs})["engines"]
    ((reference,),) = run_json("engine_scenario.py", plain)["engines"]
    assert "error" not in exact, exact
    difference = torch.tensor(exact["logprobs"])[:, 0] - torch.tensor(reference["logprobs"])[:, 0]
    assert difference.abs().max() < 0.02
    assert pinned["logprobs"] == again["logprobs"] == exact["logprobs"]
    assert exact["logprobs"] != fast["logprobs"]
    assert (torch.tensor(fast["logprobs"])[:, 0] - torch.tensor(exact["logprobs"])[:, 0]).abs().mean() < 0.25
    shutil.rmtree(folder)
