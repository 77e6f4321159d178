"""A start that only the engine can refuse, from the command line to what it prints: damaged weights, too little memory."""

import shutil

import pytest
import refused_start
from processes import ROOT
from safetensors.torch import load_file, save_file

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture
def with_nan(tmp_path):
    """A copy of the shipped model with one weight that is no number."""
    folder = shutil.copytree(ROOT / "models" / "fairytales-8m", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("down_proj.weight"))
    weights[name][3, 5] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def refused(tmp_path, change):
    done = refused_start.start(tmp_path, change)
    assert done.returncode == 1, done.stdout
    sentences = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1, done.stdout
    assert "Traceback" not in done.stdout
    return sentences[0]


def test_a_weight_that_is_no_number_is_named_with_its_layer(tmp_path, with_nan):
    def change(data):
        data["model"]["path"] = str(with_nan)

    sentence = refused(tmp_path, change)
    assert "down_proj: 1 of " in sentence
    assert "weights are NaN or infinite as FP16" in sentence


def test_too_little_memory_for_one_request_is_said_with_what_would_do(tmp_path):
    def change(data):
        data["engine"]["kv_cache_bytes"] = 1 << 20

    sentence = refused(tmp_path, change)
    assert "KV cache" in sentence
    assert "max_model_len" in sentence
