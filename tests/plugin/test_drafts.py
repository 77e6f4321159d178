"""Speculative decoding on a CPU: a drafter changes no exact answer, and drafts are counted by the precision that verified them."""

import drafters
import pytest
from processes import run_json

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
