"""``--check`` on checkpoints that lack weights, hold no finite numbers or are damaged: one line, status 2, no traceback."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_model_check import SHIPPED, configured

from deploy import serve
from nestedfp.offline.convert import convert

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own, while they are imported
O_PROJ, NORM = "model.layers.0.self_attn.o_proj.weight", "model.norm.weight"


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    return folder


def with_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def with_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def checked(tmp_path, capfd):
    """Return what ``--check`` says and its status."""

    def check(model):
        configured(tmp_path, SHIPPED)
        path = tmp_path / "config.yaml"
        path.write_text(path.read_text().replace(str(SHIPPED), str(model)))
        status = serve.main(["--config", str(path), "--check"])
        return status, capfd.readouterr().err

    return check


def refused(checked, model):
    status, said = checked(model)
    assert status == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def test_whole_checkpoints_pass(tmp_path, checked):
    convert(SHIPPED, tmp_path / "nested")
    assert checked(SHIPPED) == checked(tmp_path / "nested") == (0, "")


@pytest.mark.parametrize("name", [O_PROJ, NORM, "model.embed_tokens.weight", "model.layers.3.mlp.up_proj.weight"])
def test_a_checkpoint_that_lacks_a_tensor(checked, model, name):
    with_tensors(model, lambda tensors: tensors.pop(name))
    said = refused(checked, model)
    assert "the checkpoint lacks weights of 1 parameters of the model: " in said
    assert name.replace("up_proj", "gate_up_proj") in said


def test_a_converted_checkpoint_that_lacks_a_norm(tmp_path, checked):
    convert(SHIPPED, tmp_path / "nested")
    with_tensors(tmp_path / "nested", lambda tensors: tensors.pop(NORM))
    assert NORM in refused(checked, tmp_path / "nested")


@pytest.mark.parametrize(
    ("name", "value"), [(O_PROJ, torch.nan), (NORM, torch.inf), ("model.embed_tokens.weight", -torch.inf)]
)
def test_a_value_that_is_none(checked, model, name, value):
    with_tensors(model, lambda tensors: tensors[name].view(-1)[-1:].fill_(value))
    assert f"model.safetensors: {name}: 1 of " in refused(checked, model)


def test_a_value_beyond_the_range_of_fp16(checked, model):
    with_tensors(model, lambda tensors: tensors.update({NORM: torch.full((256,), 1e5).bfloat16()}))
    assert f"{NORM}: 256 values beyond FP16's 65504" in refused(checked, model)


def test_a_tensor_that_the_model_passes_over_may_hold_anything(checked, model):
    name = "model.layers.0.self_attn.rotary_emb.cached"
    with_tensors(model, lambda tensors: tensors.update({name: torch.full((4,), torch.nan)}))
    status, said = checked(model)
    assert (status == 0) == ("cached" not in said)


def test_a_tensor_of_another_shape(checked, model):
    with_tensors(model, lambda tensors: tensors.update({O_PROJ: torch.zeros(256, 128).half()}))
    assert "vLLM cannot load the checkpoint's tensors" in refused(checked, model)


def test_a_tensor_that_the_model_has_no_place_for(checked, model):
    with_tensors(model, lambda tensors: tensors.update({"model.layers.0.mystery.weight": torch.zeros(2, 2).half()}))
    assert "mystery" in refused(checked, model)


@pytest.mark.parametrize("text", ["", "[]", "\ufeff{}"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_a_file_that_is_not_what_it_should_be(checked, model, file, text):
    (model / file).write_text(text, encoding="utf-8")
    assert file in refused(checked, model)


@pytest.mark.parametrize(
    "quantization",
    [
        "awq",
        3,
        {"quant_method": "nestedfp", "format_version": 99},
        {"quant_method": "nestedfp", "format_version": 1, "ignore": None},
        {"quant_method": "nestedfp", "format_version": 1, "ignore": [3]},
        {"quant_method": "nestedfp", "format_version": 1, "x": 1},
    ],
)
def test_a_quantization_config_that_cannot_be_read(checked, model, quantization):
    with_config(model, quantization_config=quantization)
    assert "quantization_config" in refused(checked, model)


def test_fp8_tensors_without_a_word_of_them(checked, model):
    with_tensors(model, lambda tensors: tensors.update({O_PROJ: torch.zeros(256, 256).to(torch.float8_e4m3fn)}))
    status, said = checked(model)
    assert (status, "F8_E4M3" in said) == (2, True)
