"""Two copies of the weights: FP16 steps are plain vLLM's, FP8 steps are those of nested weights, and what they hold and say.

Run: ``pytest -q tests/plugin/test_two_copies.py``
"""

import shutil
import warnings

import pytest
import torch
from counting_backend import CountingBackend
from processes import run_json
from safetensors.torch import load_file, save_file
from test_model_kinds import QWEN3_MOE, load, loaded
from test_self_check import Broken
from vllm_parts import MODEL

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.offline.convert import convert

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.model_executor.layers import utils

    from nestedfp.vllm_plugin.ranks import self_check
    from nestedfp.vllm_plugin.weights.coverage import cover

pytestmark = pytest.mark.usefixtures("experts_group", "fp16_again")

TWO_COPIES = {"additional_config": {"nestedfp": {"weights": "two_copies"}}}
PROMPTS = ["Once upon a time there was a king who", "The old woman said to the fox:", "In the middle of the forest"]
LONG = "The youngest brother went out into the wide world to seek his fortune. " * 8


@pytest.mark.engine
def test_an_engine_switches_between_steps_and_discloses_as_with_nested_weights():
    tokens = {"prompts": PROMPTS, "max_tokens": 32}
    runs = [
        {"mode": "fp16", **tokens},
        {"mode": "fp8", **tokens},
        # Steps of more than 20 tokens run FP8: the prompts, but not the decode steps.
        {"mode": "auto", "rule": {"fp8_step_tokens": 20}, "prompts": [f"{i}. {LONG}" for i in range(3)]},
        {"mode": "fp8", **tokens, "extra_args": {"precision": "fp16"}},
        {"mode": "fp16", **tokens},
        {"mode": "fp8", **tokens},
    ]
    engine = {"model": str(MODEL), "enforce_eager": True, "enable_prefix_caching": False, "quantization": "nestedfp"}
    (two,) = run_json("engine_scenario.py", {"engines": [{**engine, **TWO_COPIES}], "runs": runs})["engines"]
    assert [two[i]["logprobs"] for i in (3, 4, 5)] == [two[i]["logprobs"] for i in (0, 0, 1)]
    assert two[0]["logprobs"] != two[1]["logprobs"]
    for number, mode in enumerate(("fp16", "fp8", None, "fp16")):
        for counts in two[number]["precision"] if mode else ():
            assert counts["completion"] == {"fp16": 0, "fp8": 0, mode: 32}
    for counts in two[2]["precision"]:
        assert counts["prompt"]["fp16"] == 0 < counts["prompt"]["fp8"]
        assert counts["completion"]["fp8"] <= 2  # tokens that came out of a step with a prompt in it
        assert counts["completion"]["fp16"] >= 14
    assert two[2]["stats"]["switches"] > two[1]["stats"]["switches"]
    assert not two[0]["stats"]["fp16_only"]


def layers(model):
    return dict(self_check.nested_layers(model))


def outputs(layer, mode):
    torch.manual_seed(3)
    ops.set_mode(mode)
    with torch.inference_mode():
        return layer.quant_method.apply(layer, torch.randn(5, layer.nestedfp_shape[1]).half(), None)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The shipped model with weights beyond the range, as plain weights and as planes."""
    plain = tmp_path_factory.mktemp("plain")
    for file in MODEL.glob("*.json"):
        shutil.copy(file, plain)
    tensors = load_file(MODEL / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = 2.5
    tensors["model.layers.1.self_attn.k_proj.weight"][0, 1] = -3.0  # one part of a fused layer
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    convert(plain, plain.parent / "planes")
    return {"plain": plain, "planes": plain.parent / "planes"}


@pytest.mark.parametrize("kind", ["plain", "planes"])
def test_every_layer_multiplies_as_vllm_does_in_fp16_mode_and_as_nested_ones_in_fp8_mode(checkpoints, kind):
    two = layers(loaded(checkpoints[kind], **TWO_COPIES))
    nested = layers(loaded(checkpoints[kind]))
    vllms = dict(loaded(checkpoints["plain"], quantization=None).named_modules())
    assert two.keys() == nested.keys()
    assert sum(layer.outlier_deltas is not None for layer in two.values()) == 2
    for name, layer in two.items():
        assert torch.equal(outputs(layer, Mode.FP8), outputs(nested[name], Mode.FP8)), name
        layer_of_vllm = vllms[name]
        layer_of_vllm.nestedfp_shape = layer.nestedfp_shape
        assert torch.equal(outputs(layer, Mode.FP16), outputs(layer_of_vllm, Mode.FP16)), name


def test_one_compiled_graph_serves_both_modes(tmp_path):
    (_, layer), *_ = layers(load(tmp_path, QWEN3_MOE, **TWO_COPIES)).items()
    backend = CountingBackend()

    @torch.compile(backend=backend, fullgraph=True)
    def step(x):
        return layer.quant_method.apply(layer, torch.relu(x), None) + 1

    x = torch.randn(4, layer.nestedfp_shape[1]).half()
    for mode in (Mode.FP16, Mode.FP8, Mode.FP16):
        ops.set_mode(mode)
        assert torch.equal(step(x), layer.quant_method.apply(layer, torch.relu(x), None) + 1)
    assert backend.compilations == 1


@pytest.fixture
def unpacked(monkeypatch):
    """Plain weights that stay where they are, as a GPU's do: vLLM packs a CPU's."""

    def leave(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", leave)


def bytes_for_each_weight(model):
    held = weights = 0
    for layer in layers(model).values():
        held += sum(p.nbytes for name, p in layer.named_parameters(recurse=False) if name.startswith("weight"))
        weights += layer.nestedfp_shape[0] * layer.nestedfp_shape[1]
    return held / weights


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize("kind", ["plain", "planes"])
def test_three_bytes_are_held_for_each_weight_where_nested_ones_hold_two(checkpoints, kind):
    two, nested = loaded(checkpoints[kind], **TWO_COPIES), loaded(checkpoints[kind])
    assert bytes_for_each_weight(two) == 3
    assert bytes_for_each_weight(nested) == 2
    found, usual = cover(two), cover(nested)
    assert found.copies == found.nested // 2 > usual.copies == 0
    assert found.fp8_share == usual.fp8_share > 0
    assert found.layers["two_copies"] == usual.layers["nested"] + usual.layers["listed"]
    assert found.layers["nested"] == found.layers["listed"] == 0
    assert "GB of FP8 weights beside them" in found.line()
    assert "beside them" not in usual.line()
    assert self_check.run(two).plane_bytes == 3 * self_check.run(nested).plane_bytes // 2


def test_a_sound_model_passes_the_self_check(checkpoints):
    found = self_check.run(loaded(checkpoints["plain"], **TWO_COPIES))
    assert found.layers > 0
    assert 0.99 < found.worst_cosine <= 1


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize(("name", "part"), [("weight_upper", "upper plane"), ("weight", "FP16 weight")])
def test_a_single_bit_that_changed_since_the_load_is_found(tmp_path, name, part):
    model = load(tmp_path, QWEN3_MOE, **TWO_COPIES)
    (where, layer), *_ = layers(model).items()
    getattr(layer, name).data.view(torch.uint8).view(-1)[123] ^= 1
    with pytest.raises(self_check.SelfCheckError, match=f"{where}: the {part} has changed since it was loaded"):
        self_check.run(model)


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize(("modes", "wrong"), [({Mode.FP8}, "FP8"), (set(Mode), "FP16")])
def test_a_kernel_that_computes_something_else_is_found(tmp_path, modes, wrong):
    model = load(tmp_path, QWEN3_MOE, **TWO_COPIES)
    (_, layer), *_ = layers(model).items()
    layer.quant_method = Broken(layer.quant_method, lambda out: out * 1.1, modes)
    with pytest.raises(self_check.SelfCheckError, match=f"{wrong} mode does not compute with the stored weights"):
        self_check.run(model)


def test_where_there_is_no_fp8_mode_the_weight_is_held_once(checkpoints):
    options = {"additional_config": {"nestedfp": {"weights": "two_copies", "fp16_only": True}}}
    for folder in checkpoints.values():
        assert not layers(loaded(folder, **options))
