"""Checkpoints with the ranges of models that need outlier lists: every linear layer has a fast form, no worse than others'.

The largest weights and the share of layers within 1.75 are those that the NestedFP paper gives.
"""

import json

import pytest
import torch
from quantizer_reference import quantize_per_token
from safetensors.torch import load_file, save_file

from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import NestedWeight, nest
from nestedfp.offline.convert import convert, restore
from nestedfp.offline.inspect import inspect

LAYERS = 10
SHAPES = {
    "self_attn.q_proj": (128, 128),
    "self_attn.k_proj": (64, 128),
    "self_attn.v_proj": (64, 128),
    "self_attn.o_proj": (128, 128),
    "mlp.gate_proj": (256, 128),
    "mlp.up_proj": (256, 128),
    "mlp.down_proj": (128, 256),
}
# Smallest and largest weight, share of the layers within 1.75.
MODELS = {"phi-4": (-3.6, 3.89, 0.912), "gemma-3": (-26.25, 26.25, 0.762), "llama-3.1-70b": (-93.0, 93.0, 0.934)}


@pytest.fixture(params=MODELS)
def model(request, tmp_path):
    """A BF16 checkpoint, and the modules with weights beyond 1.75."""
    low, high, within = MODELS[request.param]
    torch.manual_seed(len(request.param))
    names = [f"model.layers.{i}.{name}" for i in range(LAYERS) for name in SHAPES]
    order = torch.randperm(len(names)).tolist()
    beyond = {names[i] for i in order[: round(len(names) * (1 - within))]}
    tensors = {}
    for name in names:
        weight = torch.randn(SHAPES[name.split(".", 3)[3]]) * 0.03
        if name in beyond:
            places = torch.randperm(weight.numel())[:6]
            weight.view(-1)[places] = torch.empty(6).uniform_(1.8, high) * torch.tensor([1, -low / high] * 3)
            weight.view(-1)[places[0]], weight.view(-1)[places[1]] = high, low
        tensors[f"{name}.weight"] = weight.bfloat16()
    tensors["model.embed_tokens.weight"] = torch.randn(64, 128).bfloat16()
    folder = tmp_path / request.param
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16"}))
    return folder, beyond


def test_every_layer_has_a_fast_form_with_no_more_error_than_those_without_outliers(model):
    folder, beyond = model
    layers = {layer.module: layer for layer in inspect(folder, lambda _: None).linear}
    assert len(layers) == LAYERS * len(SHAPES)
    assert {module for module, layer in layers.items() if layer.verdict.kind == "listed"} == beyond
    assert {layer.verdict.kind for layer in layers.values()} == {"nested", "listed"}
    usual = max(layer.profile.fp8_error for module, layer in layers.items() if module not in beyond)
    assert all(layers[module].profile.fp8_error <= usual for module in beyond)


def test_converted_and_restored_they_keep_their_bits(model, tmp_path):
    folder, beyond = model
    report = convert(folder, tmp_path / "nested")
    assert set(report.listed) == beyond
    assert not report.plain
    restore(tmp_path / "nested", tmp_path / "restored")
    before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "restored"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].half(), after[name].half()) for name in before)


def test_products_of_listed_layers_are_exact_in_fp16_and_as_near_as_others_in_fp8(model):
    folder, beyond = model
    weights = load_file(folder / "model.safetensors")
    errors = {}
    for name, weight in weights.items():
        if "layers." not in name:
            continue
        half, x = weight.half(), torch.randn(32, weight.shape[1])
        nested = nest(half)
        assert isinstance(nested, NestedWeight)
        operands = (*ops.pack(nested.upper, nested.lower), None)
        lists = (nested.outlier_rows, nested.outlier_cols, nested.outlier_deltas)
        expected = x.double() @ half.double().T
        found = {}
        for mode in Mode:
            ops.set_mode(mode)
            found[mode] = ops.linear(x, *operands, *lists, *half.shape, True).double()
        ops.set_mode(Mode.FP16)
        # A clamped weight, its list and the rest are summed in FP32: exact up to the rounding of those sums.
        assert torch.allclose(found[Mode.FP16], expected, rtol=1e-5, atol=1e-4)
        codes, scales = quantize_per_token(x)
        rounded = (codes.float() * scales).double()  # the error of the inputs is the same whatever the weights are
        deltas = torch.zeros_like(half, dtype=torch.float64)
        if nested.outliers:
            deltas[nested.outlier_rows.long(), nested.outlier_cols.long()] = nested.outlier_deltas.double()
        ideal = rounded @ (half.double() - deltas).T + x.double() @ deltas.T
        errors[name.removesuffix(".weight")] = float((found[Mode.FP8] - ideal).norm() / ideal.norm())
    usual = max(error for module, error in errors.items() if module not in beyond)
    assert max(errors[module] for module in beyond) <= usual
