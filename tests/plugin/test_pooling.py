"""Models that make vectors run in both precisions, pinned where a request says so, and say which it was."""

import json
import math
import shutil

import pytest
import torch
from processes import ROOT, run_json
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.engine
MODEL = ROOT / "models" / "fairytales-8m"
PROMPTS = ["Once upon a time there was a king who had twelve daughters", "A fox came to a well"]
RUNS = [
    {"mode": "fp16"},
    {"mode": "fp8"},
    {"mode": "fp8", "extra_kwargs": {"precision": "fp16"}},
    {"mode": "fp8", "extra_kwargs": {"precision": "fp4"}},
]


@pytest.fixture
def classifier(tmp_path):
    """The shipped model with a head that tells two classes apart."""
    folder = shutil.copytree(MODEL, tmp_path / "classifier")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["LlamaForSequenceClassification"], "num_labels": 2, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    weights["score.weight"] = torch.randn(2, config["hidden_size"]).half()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_vectors_follow_the_directive_and_a_pinned_one_is_exact(task, classifier):
    model = {"embed": MODEL, "classify": classifier}[task]
    engine = {"model": str(model), "runner": "pooling", "quantization": "nestedfp", "enforce_eager": True}
    runs = run_json("pooling_scenario.py", {"engine": engine, "task": task, "prompts": PROMPTS, "runs": RUNS})["runs"]
    exact, fp8, pinned, wrong = runs
    assert pinned["vectors"] == exact["vectors"] != fp8["vectors"]
    for ours, theirs in zip(fp8["vectors"], exact["vectors"], strict=True):
        assert cosine(ours, theirs) > 0.99
    for run, mode in ((exact, "fp16"), (fp8, "fp8"), (pinned, "fp16")):
        for tokens in run["precision"]:
            computed = tokens["prompt"]
            assert computed[mode] > 5
            assert computed[mode] == computed["fp16"] + computed["fp8"]
            assert tokens["completion"] == {"fp16": 0, "fp8": 0}
    assert "precision must be 'exact'" in wrong["error"]
