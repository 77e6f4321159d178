"""Mixtures of experts: nested experts compute what plain vLLM's do in FP16 mode, and about that in FP8 mode.

Random weights in the shapes of two families, some of them beyond 1.75.
"""

import json
import shutil
import warnings

import pytest
import torch
from processes import run_json
from safetensors.torch import load_file, save_file
from test_model_kinds import QWEN3_MOE as SMALL
from test_model_kinds import loaded
from vllm_parts import MODEL

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.offline.convert import convert, restore
from nestedfp.offline.inspect import inspect

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from nestedfp.vllm_plugin.loading.load_check import checked
    from nestedfp.vllm_plugin.ranks import self_check
    from nestedfp.vllm_plugin.weights.coverage import cover
    from nestedfp.vllm_plugin.weights.expert_planes import nested_experts
    from nestedfp.vllm_plugin.weights.experts import experts_cpu

pytestmark = pytest.mark.usefixtures("experts_group", "fp16_again", "dtype_again")

HIDDEN, INTERMEDIATE, EXPERTS, LAYERS = 256, 128, 8, 2
COMMON = {
    **SMALL,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 512,
    "num_experts": EXPERTS,
    "moe_intermediate_size": INTERMEDIATE,
}
# Config, the layer's name and those of gate, up and down.
FAMILIES = {
    "qwen3": (COMMON, ("mlp", "gate_proj", "up_proj", "down_proj")),
    "mixtral": (
        {
            **COMMON,
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": EXPERTS,
            "sliding_window": None,
            "rope_theta": 10000.0,
        },
        ("block_sparse_moe", "w1", "w3", "w2"),
    ),
}
OUTLIER = ("model.layers.0.", 3)  # the layer and the expert of which one weight of each matrix is beyond 1.75


def random_tensors(family):
    """A checkpoint's tensors by name; a weight of 1.9 in each matrix of one expert."""
    torch.manual_seed(5)
    _, (mlp, gate, up, down) = FAMILIES[family]
    shapes = {"model.embed_tokens": (4096, HIDDEN), "model.norm": (HIDDEN,), "lm_head": (4096, HIDDEN)}
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}."
        shapes |= {f"{stem}self_attn.{name}_proj": (256, HIDDEN) for name in "qo"}
        shapes |= {f"{stem}self_attn.{name}_proj": (128, HIDDEN) for name in "kv"}
        shapes |= {f"{stem}{name}_layernorm": (HIDDEN,) for name in ("input", "post_attention")}
        if family == "qwen3":
            shapes |= {f"{stem}self_attn.{name}_norm": (64,) for name in "qk"}
        shapes[f"{stem}{mlp}.gate"] = (EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            prefix = f"{stem}{mlp}.experts.{expert}."
            shapes |= {prefix + name: (INTERMEDIATE, HIDDEN) for name in (gate, up)}
            shapes[prefix + down] = (HIDDEN, INTERMEDIATE)
    tensors = {
        f"{name}.weight": (torch.randn(shape) * 0.05 if len(shape) == 2 else torch.ones(shape)).half()
        for name, shape in shapes.items()
    }
    for name in (gate, up, down):
        tensors[f"{OUTLIER[0]}{mlp}.experts.{OUTLIER[1]}.{name}.weight"][7, 9] = 1.9
    return tensors


def write(folder, config, tensors):
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / file, folder)
    (folder / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 2}))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """A checkpoint, the same as planes, and its tensors."""
    folder, tensors = tmp_path_factory.mktemp(request.param), random_tensors(request.param)
    plain = write(folder / "plain", FAMILIES[request.param][0], tensors)
    convert(plain, folder / "planes")
    return plain, folder / "planes", tensors


def outputs(model, mode=None, activations=1.0):
    """What each layer of experts makes of the same random activations and router logits."""
    torch.manual_seed(6)
    x, logits = (torch.randn(37, HIDDEN) * activations).half(), torch.randn(37, EXPERTS).half()
    layers = [module for module in model.modules() if type(module).__name__ == "RoutedExperts"]
    assert len(layers) == LAYERS
    if mode:
        ops.set_mode(mode)
    with torch.inference_mode():
        return torch.stack([each.quant_method.apply_monolithic(each, x.clone(), logits) for each in layers])


def test_nested_experts_have_plain_vllms_bits_in_fp16_mode_and_are_close_in_fp8_mode(family, monkeypatch):
    plain_folder, planes, _ = family
    expected = outputs(loaded(plain_folder, quantization=None))
    rms = expected.float().square().mean().sqrt()
    for folder, arguments in ((plain_folder, {}), (planes, {"quantization": None})):
        with checked():
            model = loaded(folder, **arguments)
        assert len(nested_experts(model)) == LAYERS
        found = cover(model)
        assert found.experts == LAYERS * EXPERTS * 3 * INTERMEDIATE * HIDDEN * 2
        assert found.plain["experts"] == 0
        assert found.plain["routers"] == LAYERS * EXPERTS * HIDDEN * 2
        fast = outputs(model, Mode.FP8)
        for _ in range(2):  # flips leave nothing behind
            exact = outputs(model, Mode.FP16)
            # vLLM adds up in another order where its processor has other vectors: the last bit of few elements.
            assert (exact != expected).float().mean() < 0.01
            assert torch.allclose(exact.float(), expected.float(), rtol=1e-3, atol=1e-3 * rms)
            assert torch.equal(outputs(model, Mode.FP8), fast)
        with monkeypatch.context() as patched:
            patched.setattr(experts_cpu, "MOST_TOKENS", 16)  # of 37
            assert torch.equal(outputs(model), fast)
        error = (fast.float() - expected.float()).square().mean().sqrt() / rms
        assert 0.005 < error < 0.06
        check = self_check.run(model)
        assert check.layers == 2 * LAYERS + LAYERS
        assert check.worst_cosine > 0.99
        dict(nested_experts(model))[nested_experts(model)[1][0]].w2_weight_upper.data[0, 0, 0] ^= 1
        with pytest.raises(self_check.SelfCheckError, match="w2_weight_upper has changed since it was loaded"):
            self_check.run(model)


def test_a_conversion_keeps_the_bits_and_nests_all_experts_but_those_with_lists(family, tmp_path):
    plain, planes, tensors = family
    kinds = {layer.module: layer.verdict.kind for layer in inspect(plain, lambda _: None).layers}
    experts = {module: kind for module, kind in kinds.items() if ".experts." in module}
    assert sorted(experts.values()) == ["listed"] * 3 + ["nested"] * (LAYERS * EXPERTS * 3 - 3)
    assert all(kind == "plain" for module, kind in kinds.items() if module.endswith(".gate"))
    restore(planes, tmp_path / "restored")
    again = load_file(tmp_path / "restored" / "model.safetensors")
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_experts_with_too_many_weights_beyond_the_range_stay_plain_all_together(family, tmp_path, request):
    plain, _, tensors = family
    many = {name: tensor.clone() for name, tensor in tensors.items()}
    beyond = next(name for name in many if ".layers.1." in name and ".experts.0." in name)
    many[beyond][:] = 2.0  # one matrix of 24: more than 0.1 % of the layer
    config = json.loads((plain / "config.json").read_text())
    model_folder = write(tmp_path / "many", config, many)
    convert(model_folder, tmp_path / "planes")
    ignored = json.loads((tmp_path / "planes" / "config.json").read_text())["quantization_config"]["ignore"]
    assert [name.endswith("experts") for name in ignored] == [True]
    expected = outputs(loaded(model_folder, quantization=None))
    for folder, arguments in ((model_folder, {}), (tmp_path / "planes", {"quantization": None})):
        model = loaded(folder, **arguments)
        assert [".layers.0." in f".{name}" for name, _ in nested_experts(model)] == [True]
        assert torch.equal(outputs(model, Mode.FP16)[1], expected[1])
        assert torch.equal(outputs(model, Mode.FP8)[1], expected[1])


def test_planes_are_joined_where_experts_are_served_plain(family):
    plain, planes, _ = family
    expected = outputs(loaded(plain, quantization=None))
    for folder, arguments in ((plain, {}), (planes, {"quantization": None})):
        model = loaded(folder, additional_config={"nestedfp": {"experts": "plain"}}, **arguments)
        assert nested_experts(model) == []
        assert torch.equal(outputs(model, Mode.FP8), expected)
        assert "although the experts compute in FP16" in cover(model).line()


def test_an_expert_with_a_damaged_plane_is_refused_by_name(family, tmp_path):
    _, planes, _ = family
    changed = load_file(planes / "model.safetensors")
    name = next(each for each in changed if ".layers.1." in each and ".experts.5." in each and "upper" in each)
    changed[name].fill_(0x7F)
    folder = write(tmp_path / "damaged", json.loads((planes / "config.json").read_text()), changed)
    with pytest.raises(ValueError, match=r"layers\.1\.\w+\.experts"), checked():
        loaded(folder, quantization=None)


PROMPTS = ["Once upon a time there was a king who", "The old woman said to the fox:", "In the middle of the forest"]


@pytest.mark.engine
@pytest.mark.parametrize("family", ["qwen3"], indirect=True)  # layer by layer both, and planes, are compared above
def test_two_ranks_serve_both_classes_of_a_mixture_and_pins_hold(family):
    plain, *_ = family
    runs = [
        {"mode": "fp16", "prompts": PROMPTS},
        {"mode": "fp8", "prompts": PROMPTS},
        {"mode": "fp8", "prompts": PROMPTS, "extra_args": {"precision": "fp16"}},
        {"mode": "auto", "fp8_above_tokens": 8, "prompts": PROMPTS},
        {"mode": "fp16", "prompts": PROMPTS},
    ]
    common = {"enforce_eager": True, "enable_prefix_caching": False, "seed": 0}
    reference = run_json(
        "engine_scenario.py", {"engines": [{**common, "model": str(plain)}], "runs": runs[:1], "nested": False}
    )["engines"][0][0]
    ranks = {**common, "model": str(plain), "quantization": "nestedfp", "tensor_parallel_size": 2}
    engines = [{**ranks, "enable_expert_parallel": whole_experts} for whole_experts in (False, True)]
    found = run_json("engine_scenario.py", {"engines": engines, "runs": runs})["engines"]
    for exact, fast, pinned, alternating, again in found:
        check(reference, exact, fast, pinned, alternating, again)


def check(reference, exact, fast, pinned, alternating, again):
    """Compare one engine's runs with each other and with plain vLLM's."""
    assert exact["tokens"] == pinned["tokens"] == again["tokens"] == reference["tokens"]
    difference = torch.tensor(exact["logprobs"]) - torch.tensor(reference["logprobs"])
    assert difference.abs().max() < 0.01
    assert pinned["logprobs"] == again["logprobs"] == exact["logprobs"] != fast["logprobs"]
    # The first tokens': rounded activations may choose other experts, which no bound of a single product holds.
    assert (torch.tensor(fast["logprobs"])[:, 0] - torch.tensor(exact["logprobs"])[:, 0]).abs().mean() < 0.25
    for number, counts in enumerate(alternating["precision"]):
        assert counts["prompt"]["fp8"] == exact["prompt_tokens"][number]
        assert counts["completion"]["fp16"] >= 14
    assert all(counts["completion"] == {"fp16": 16, "fp8": 0} for counts in pinned["precision"])
