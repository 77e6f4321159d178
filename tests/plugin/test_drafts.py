"""Speculative decoding on a CPU: a drafter changes no exact answer, and drafts are counted by the precision that verified them."""

import json

import drafters
import pytest
from processes import run_json
from safetensors.torch import load_file
from test_families import random_model

pytestmark = pytest.mark.engine

COMMON = {"enforce_eager": True, "seed": 0}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def run(engine, runs=drafters.RUNS, nested=True):
    quantization = {"quantization": "nestedfp"} if nested else {}
    payload = {"engines": [{**COMMON, **quantization, **engine}], "runs": runs, "nested": nested}
    return run_json("engine_scenario.py", payload)["engines"][0]


@pytest.fixture(scope="module")
def reference():
    return run({"model": str(drafters.MODEL)}, drafters.RUNS[:1], nested=False)[0]


def test_ngram_drafts(reference):
    exact, fast = drafters.check(run({"model": str(drafters.MODEL), "speculative_config": NGRAM}), reference, drafts=3)
    assert min(exact, fast) > 0


def test_an_eagle_head_is_as_right_in_fast_steps_as_in_exact_ones(tmp_path, reference):
    speculative = {"method": "eagle", "model": drafters.eagle_head(tmp_path / "head"), "num_speculative_tokens": 3}
    exact, fast = drafters.check(
        run({"model": str(drafters.MODEL), "speculative_config": speculative}), reference, drafts=3
    )
    assert min(exact, fast) > 0.2
    assert abs(exact - fast) < 0.1


def test_an_eagle3_head_of_a_smaller_vocabulary(tmp_path, reference):
    speculative = {"method": "eagle3", "model": drafters.eagle3_head(tmp_path / "head"), "num_speculative_tokens": 2}
    drafters.check(run({"model": str(drafters.MODEL), "speculative_config": speculative}), reference, drafts=2)


def test_a_nested_layer_of_the_models_own_drafts_in_fp16(tmp_path, reference):
    engine = {"model": drafters.mtp_model(tmp_path / "model")}
    found = run({**engine, "speculative_config": {"method": "mtp", "num_speculative_tokens": 1}})
    drafters.check(found, reference, drafts=1)
    assert [each["draft_modes"] for each in found] == [["fp16"]] * len(found)


def test_the_own_drafts_of_a_model_with_latent_attention_and_experts(tmp_path):
    random_model("deepseek_v3", tmp_path / "random", vocab_size=4096)
    tensors = load_file(tmp_path / "random" / "model.safetensors")
    config = json.loads((tmp_path / "random" / "config.json").read_text())
    layers, size = config["num_hidden_layers"], config["hidden_size"]
    stem, last = f"model.layers.{layers}.", f"model.layers.{layers - 1}."
    tensors |= {stem + name.removeprefix(last): tensors[name].clone() for name in tensors if name.startswith(last)}
    tensors |= drafters.ones(size, *(stem + norm for norm in ("enorm", "hnorm", "shared_head.norm")))
    tensors |= {
        f"{stem}eh_proj.weight": drafters.faint(size, 2 * size),
        f"{stem}embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(),
        f"{stem}shared_head.head.weight": tensors["lm_head.weight"].clone(),
    }
    model = drafters.write(tmp_path / "model", config | {"num_nextn_predict_layers": 1}, tensors)
    found = run({"model": model, "speculative_config": {"method": "mtp", "num_speculative_tokens": 1}})
    drafters.check(found, run({"model": model}, drafters.RUNS[:1])[0], drafts=1)
    assert [each["draft_modes"] for each in found] == [["fp16"]] * len(found)
