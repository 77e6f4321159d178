"""What fast and mixed answers cost: the statistics on made-up logits, the command through real engines, bad input."""

import json
import lzma
import math
import shutil
import subprocess
import sys

import pytest
import torch
from processes import ROOT

from nestedfp.cli.main import main
from nestedfp.evaluation.comparison import MIXES, Comparison, Mix, divergence_of

MODEL = ROOT / "models" / "fairytales-8m"
TALE = "Once upon a time there was a king who had three daughters, and the youngest of them was fair. "


def test_the_statistics_of_known_distributions():
    torch.manual_seed(0)
    reference = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]).log()
    logits = torch.tensor([[0.9, 0.1], [0.25, 0.75], [0.6, 0.4]]).log() + 3.0  # logits have no scale
    comparison = Comparison()
    comparison.add(logits, reference, torch.tensor([0, 1, 1]), torch.tensor([False, True, True]))
    found = comparison.as_json()
    losses = [-math.log(0.9), -math.log(0.75), -math.log(0.4)]
    assert found["loss"] == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert found["loss_increase"] == pytest.approx((math.log(0.5 / 0.75) + math.log(0.8 / 0.4)) / 3, rel=1e-5)
    kl = [
        0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75),
        0.2 * math.log(0.2 / 0.6) + 0.8 * math.log(0.8 / 0.4),
    ]
    assert found["kl_fast"] == pytest.approx(sum(kl) / 2, rel=1e-5)
    assert found["kl_exact"] == pytest.approx(0, abs=1e-6)
    assert (found["same_top_exact"], found["same_top_fast"]) == (1, 0)
    assert found["perplexity_interval"][0] < found["perplexity"] < found["perplexity_interval"][1]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.name)
def test_masks_are_as_their_mix_says(mix):
    generator = torch.Generator().manual_seed(1)
    masks = torch.stack([mix.mask(512, generator) for _ in range(200)])
    halves = [float(part.float().mean()) for part in masks.split(256, 1)]
    prompt = {"mixed": mix.share, "exact": 0, "fast": 1}[mix.prompt]
    assert halves == pytest.approx([prompt, mix.share], abs=0.03)
    changes = int((masks[:, 1:] != masks[:, :-1]).sum())
    if mix == Mix("half fast, in runs of 64", 0.5, 64):
        assert changes < 200 * 8


def test_greedy_answers_part_where_they_part():
    found = divergence_of([[1, 2, 3], [1, 5, 3]], [[1, 2, 3], [1, 2, 3]])
    assert (found["identical_share"], found["common_prefix_tokens"]) == (0.5, 2.0)


@pytest.mark.engine
@pytest.mark.slow
def test_the_command_compares_every_way_to_compute_with_plain_vllm(tmp_path):
    stdout, report = evaluated(tmp_path, "--tokens", "512", "--answers", "2")
    classes = report["classes"]
    plain, exact, fast = classes["plain vLLM, FP16"], classes["exact"], classes["fast"]
    assert plain["kl_all"] == pytest.approx(0, abs=1e-6)
    assert exact["kl_all"] < 1e-4 < fast["kl_all"]
    assert exact["loss"] == pytest.approx(plain["loss"], abs=1e-3)
    half = classes["half fast"]
    assert exact["kl_all"] < half["kl_exact"] < half["kl_fast"]
    assert classes["exact prompt, then half fast"]["kl_all"] < half["kl_all"]
    # vLLM has no FP8 layers on a CPU, and an FP8 cache on some.
    assert "unavailable" in classes["vLLM's own FP8"]
    cached, fast_cached = (classes[f"{name}, FP8 KV cache"] for name in ("exact weights", "fast"))
    assert "unavailable" in cached or exact["kl_all"] < cached["kl_all"] < fast_cached["kl_all"]
    assert len(report["layer_errors"]) == 8 * 4
    assert all(0.005 < error < 0.2 for error in report["layer_errors"].values())
    # Two tokens may be equally likely: tests/plugin/test_exactness.py tells such answers apart.
    prefixes = {name: each["common_prefix_tokens"] for name, each in report["greedy"].items()}
    assert prefixes["exact"] >= prefixes["fast"]
    assert "half fast, in runs of 64" in stdout
    # The second source: the same loss of the same tokens, from transformers.
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ids = torch.tensor(AutoTokenizer.from_pretrained(MODEL)(TALE * 40)["input_ids"][:512]).view(4, 128)
    logits = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)(input_ids=ids).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
    assert exact["loss"] == pytest.approx(loss.item(), abs=2e-3)


@pytest.mark.engine
@pytest.mark.slow
def test_the_command_compares_choices_of_layers_with_exact_answers(tmp_path):
    choices = ["mlp", "!*.0.mlp.*"]
    stdout, report = evaluated(
        tmp_path, "--tokens", "256", "--answers", "0", *(f"--fp8-layers={each}" for each in choices)
    )
    classes = report["classes"]
    assert list(classes) == ["exact", "fast, mlp", "fast, !*.0.mlp.*"]
    assert 0 < classes["fast, mlp"]["kl_all"] < classes["fast, !*.0.mlp.*"]["kl_all"]
    assert 0 < classes["fast, mlp"]["fp8_weight_share"] < 1
    assert "fast, !*.0.mlp.*" in stdout


def evaluated(folder, *words):
    """Return what the command prints of a text, and its report."""
    (folder / "tale.txt").write_text(TALE * 40)
    command = [sys.executable, "-m", "nestedfp.cli.main", "eval", str(MODEL), "--text", str(folder / "tale.txt")]
    command += ["--context", "128", "--json", str(folder / "e.json"), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "e.json").read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{model}", "--text", "{none}"], "cannot be read or written"),
        (["{none}", "--text", "{text}"], "no config.json"),
        (["{model}", "--text", "{cut}"], "expected a whole .xz file"),
        (["{model}", "--text", "{latin}"], "expected UTF-8 text, got byte 0xe9 at 6"),
        (["{model}", "--text", "{empty}"], "no text in the file"),
        (["{model}", "--text", "{text}"], "make no window of 512; lower --context"),
        (["{model}", "--text", "{text}", "--context", "1024"], "expected less than the model's 1024 positions"),
        (["{model}", "--text", "{text}", "--tokens", "0"], "--tokens: expected 2 or more"),
        (["{model}", "--text", "{text}", "--fp8-layers", "*.mpl.*"], "'*.mpl.*' matches none of 56 layers"),
        (["{mute}", "--text", "{text}"], "its tokenizer cannot be loaded"),
        (["{small}", "--text", "{text}"], "the model knows 10: tokenizer and config.json are not of one model"),
        (["{nested}", "--text", "{text}"], "is not plain; evaluate the original, or make it: nestedfp restore"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, said):
    places = {name: tmp_path / name for name in ("none", "text", "latin", "empty", "mute", "small", "nested")}
    places |= {"model": MODEL, "cut": tmp_path / "cut.xz"}
    places["text"].write_text(TALE)
    places["latin"].write_bytes("Un caf\u00e9.".encode("latin-1"))
    places["empty"].write_text("\n\n")
    places["cut"].write_bytes(lzma.compress(b"Once upon a time.\n" * 1000)[:-20])
    for name, change in (
        ("mute", {}),
        ("small", {"vocab_size": 10}),
        ("nested", {"quantization_config": {"ignore": []}}),
    ):
        shutil.copytree(MODEL, places[name])
        config = json.loads((MODEL / "config.json").read_text()) | change
        (places[name] / "config.json").write_text(json.dumps(config))
    for file in places["mute"].glob("tokenizer*"):
        file.unlink()
    assert main(["eval", *(word.format(**places) for word in words)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert said in line
