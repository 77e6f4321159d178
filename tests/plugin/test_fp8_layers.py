"""The choice of the layers that fast steps compute in FP8: what it means, what it does to a model, and what it refuses."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from test_model_kinds import loaded
from vllm.config import set_current_vllm_config
from vllm_parts import MODEL, engine_config

from nestedfp.eligible import computes_fp8, fp8_patterns, require_fp8_layers
from nestedfp.kernels import ops
from nestedfp.modes import Mode
from nestedfp.nested_weight import nest
from nestedfp.offline.convert import convert
from nestedfp.vllm_plugin.weights.coverage import cover
from nestedfp.vllm_plugin.weights.layers import OnlineNestedLinear

QKV = ["model.layers.3.self_attn.q_proj", "model.layers.3.self_attn.k_proj", "model.layers.3.self_attn.v_proj"]
DOWN = ["model.layers.3.mlp.down_proj"]


@pytest.mark.parametrize(
    ("choice", "qkv", "down"),
    [
        ("all", True, True),
        ("mlp", False, True),
        (["*.mlp.*"], False, True),
        (["!*.k_proj"], False, True),  # fused with q and v
        (["*.q_proj", "*.k_proj", "*.v_proj"], True, False),
        (["*.layers.3.*", "!*.down_proj"], True, False),
        (["!*.layers.3.*", "*.layers.3.mlp.down_proj"], False, True),
    ],
)
def test_the_last_pattern_that_matches_decides(choice, qkv, down):
    patterns = fp8_patterns(choice)
    assert (computes_fp8(patterns, QKV), computes_fp8(patterns, DOWN)) == (qkv, down)
    require_fp8_layers(choice, [QKV, DOWN])


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("attention", "expected one of"),
        ([], "expected one of"),
        (["!"], "expected one of"),
        ([1], "expected one of"),
        (None, "expected one of"),
        (["*.mlp.*", "*.mpl.*"], r"'\*.mpl.\*' matches none of 4 layers, such as model.layers.3.self_attn.q_proj"),
        (["down_proj"], "matches none"),  # the whole name
        (["*.q_proj"], "leaves no layer in FP8"),
        (["*", "!*"], "leaves no layer in FP8"),
    ],
)
def test_a_choice_that_fits_no_model_is_one_sentence(choice, said):
    with pytest.raises(ValueError, match=said) as refused:
        require_fp8_layers(choice, [QKV, DOWN])
    assert "\n" not in str(refused.value)


def test_mlp_of_a_model_without_attention_is_refused():
    with pytest.raises(ValueError, match="'mlp' finds no attention"):
        require_fp8_layers("mlp", [DOWN])


@pytest.mark.parametrize("choice", [["*.mpl.*"], "attention"])
def test_it_is_refused_before_anything_loads(choice):
    with pytest.raises(ValueError, match="fp8_layers"):
        engine_config(additional_config={"nestedfp": {"fp8_layers": choice}})


@pytest.mark.usefixtures("fp16_again")
def test_the_exact_operator_computes_fp16_in_every_mode():
    torch.manual_seed(0)
    weight, x = (torch.randn(rows, 64).half() / 8 for rows in (48, 5))
    weight[3, 7] = 9.0  # listed
    nested = nest(weight)
    planes = ops.pack(nested.upper, nested.lower)
    outliers = nested.outlier_rows, nested.outlier_cols, nested.outlier_deltas
    ops.set_mode(Mode.FP16)
    expected = ops.linear(x, *planes, None, *outliers, 48, 64, False)
    ops.set_mode(Mode.FP8)
    assert not torch.equal(ops.linear(x, *planes, None, *outliers, 48, 64, False), expected)
    assert torch.equal(ops.linear(x, *planes, None, *outliers, 48, 64, True, is_exact=True), expected)
    ops.set_mixed(torch.tensor([True, False, True, False, False]))
    assert torch.equal(ops.linear(x, *planes, None, *outliers, 48, 64, True, is_exact=True), expected)


def test_a_gpu_has_such_layers_plain(monkeypatch):
    gpu = SimpleNamespace(is_cpu=lambda: False, get_device_capability=lambda: SimpleNamespace(major=9, minor=0))
    with set_current_vllm_config(engine_config()):
        assert not OnlineNestedLinear("layer", is_exact=True).stays_plain
        monkeypatch.setattr("nestedfp.vllm_plugin.weights.layers.current_platform", gpu)
        assert OnlineNestedLinear("layer", is_exact=True).stays_plain
        assert not OnlineNestedLinear("layer").stays_plain


@pytest.mark.usefixtures("experts_group", "dtype_again", "fp16_again")
@pytest.mark.parametrize("kind", ["plain", "converted"])
def test_layers_out_of_the_choice_compute_fp16_in_a_fast_step_and_are_stored_once(tmp_path, kind):
    folder = tmp_path / "model"
    (convert if kind == "converted" else shutil.copytree)(MODEL, folder)
    options = {"fp8_layers": ["!*attn*", "!*.layers.2.*"]}
    arguments = {} if kind == "converted" else {"quantization": "nestedfp"}
    model = loaded(folder, **arguments, additional_config={"nestedfp": options})
    found = cover(model)
    assert found.layers == {"exact": 8 + 8 + 2, "nested": 2 * 7}
    whole = cover(loaded(folder, **arguments, additional_config={"nestedfp": {}}))
    assert found.nested + found.plain["layers that fp8_layers leaves in FP16"] == whole.nested
    assert found.linear_weights == whole.linear_weights
    for name, module in model.named_modules():
        if not hasattr(module, "nestedfp_exact"):
            continue
        x = torch.randn(3, module.input_size_per_partition).half()
        outputs = []
        for mode in Mode:
            ops.set_mode(mode)
            outputs.append(module.quant_method.apply(module, x))
        assert torch.equal(*outputs) == ("attn" in name or ".layers.2." in name), name
