"""The numerical self-check of an engine's start, on layers as an engine's worker loads them."""

import warnings

import pytest
import torch
from test_model_kinds import DEEPSEEK, QWEN3_MOE, load

from nestedfp.kernels import ops
from nestedfp.modes import Mode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from nestedfp.vllm_plugin.ranks import self_check


LEAST_COSINE = 0.97  # of tiny experts, which multiply twice


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("model")


@pytest.fixture
def model(folder):
    return load(folder, QWEN3_MOE)


def first_layer(model):
    return next(self_check.nested_layers(model))


@pytest.mark.parametrize("config", [QWEN3_MOE, DEEPSEEK], ids=["experts", "latent attention"])
def test_a_sound_model_passes_and_stays_in_fp16_mode(tmp_path, config):
    model = load(tmp_path, config)
    ops.set_mode(Mode.FP8)
    found = self_check.run(model)
    experts = [each for each in model.modules() if hasattr(each, "w13_weight_upper")]
    assert found.layers == len(list(self_check.nested_layers(model))) + len(experts) > len(experts)
    assert found.plane_bytes == sum(
        each.nbytes for name, each in model.named_parameters() if name.endswith(("weight_upper", "weight_lower"))
    )
    assert (LEAST_COSINE if experts else 0.99) < found.worst_cosine <= 1
    assert f"{found.layers} nested layers" in found.line()
    assert ops.get_mode() is Mode.FP16


@pytest.mark.parametrize("plane", ["upper", "lower"])
@pytest.mark.parametrize("bit", [0, 7])
def test_a_single_bit_that_changed_since_the_load_is_found(model, plane, bit):
    name, layer = first_layer(model)
    getattr(layer, f"weight_{plane}").data.view(-1)[123] ^= 1 << bit
    with pytest.raises(self_check.SelfCheckError, match=f"{name}: the {plane} plane has changed since it was loaded"):
        self_check.run(model)
    assert ops.get_mode() is Mode.FP16


class Broken:
    """A linear method whose outputs are wrong in some modes."""

    def __init__(self, method, change, modes):
        self._method, self._change, self._modes = method, change, modes
        self.quantize_activations = method.quantize_activations

    def apply(self, layer, x, bias=None):
        out = self._method.apply(layer, x, bias)
        return self._change(out) if ops.get_mode() in self._modes else out


@pytest.mark.parametrize(
    ("change", "modes", "message"),
    [
        (lambda out: out.roll(1, dims=-1), {Mode.FP8}, "FP8 mode computes something else than FP16 mode"),
        (lambda out: out * torch.nan, {Mode.FP8}, r"cosine nan"),
        (lambda out: out * 1.1, {Mode.FP8, Mode.FP16}, "FP16 mode does not compute with the stored weights"),
        (lambda out: out * torch.nan, {Mode.FP16}, r"cosine nan"),
    ],
    ids=["wrong FP8", "FP8 of NaN", "wrong in both", "FP16 of NaN"],
)
def test_a_kernel_that_computes_something_else_is_found(model, change, modes, message):
    _, layer = first_layer(model)
    layer.quant_method = Broken(layer.quant_method, change, modes)
    with pytest.raises(self_check.SelfCheckError, match=message):
        self_check.run(model)


@pytest.fixture
def without_lists(model):
    assert all(layer.outlier_deltas is None for _, layer in self_check.nested_layers(model))
    return model


@pytest.mark.parametrize("operator", ["rms_norm", "silu_and_mul"])
@pytest.mark.parametrize("mode", Mode)
def test_a_fused_operator_that_computes_something_else_is_found(without_lists, monkeypatch, operator, mode):
    model, original = without_lists, getattr(ops, operator)
    assert self_check.run(model, is_fused=True).worst_cosine > LEAST_COSINE

    def broken(*arguments):
        carrier, scales = original(*arguments)
        return (carrier.roll(1, dims=-1) if ops.get_mode() is mode else carrier), scales

    monkeypatch.setattr(ops, operator, broken)
    name, _ = first_layer(model)
    message = (
        f"{name}: {operator} before it computes something else in {mode.value.upper()} mode .*fused_quantiser: never"
    )
    with pytest.raises(self_check.SelfCheckError, match=message):
        self_check.run(model, is_fused=True)
    assert ops.get_mode() is Mode.FP16
    assert self_check.run(model).layers > 0, "an engine without them does not ask"


def test_layers_that_read_no_carrier_are_not_asked_for_one(without_lists, monkeypatch):
    monkeypatch.setattr(self_check, "CARRIER_COLUMNS", 1 << 20)
    monkeypatch.setattr(ops, "linear_carried", None)
    assert self_check.run(without_lists, is_fused=True).layers > 0


def test_listed_weights_count_in_the_comparison(model):
    """A layer with weights beyond 1.75: both its list and its planes are what FP16 mode multiplies."""
    _, layer = first_layer(model)
    k = layer.nestedfp_shape[1]
    layer.outlier_rows = torch.tensor([0, 3], dtype=torch.int32)
    layer.outlier_cols = torch.tensor([1, k - 1], dtype=torch.int32)
    layer.outlier_deltas = torch.tensor([2.5, -4.0])
    assert self_check.run(model).worst_cosine > LEAST_COSINE


def test_a_plane_of_odd_size_has_a_checksum_too():
    plane = torch.arange(13, dtype=torch.uint8)
    before = self_check.checksum(plane)
    plane[12] += 1
    assert self_check.checksum(plane) == before + 1


def test_a_model_without_nested_layers_passes_and_says_so():
    assert "no nested layer" in self_check.run(torch.nn.Linear(2, 2)).line()
