"""The demonstration model's scripts, end to end on a few lines of text: train, load, encode, chat.

Run: pytest tests/checkpoints/test_models.py
"""

import json
import lzma
import re
import warnings
from pathlib import Path

import pytest

pytest.importorskip("transformers")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # third-party imports, not ours
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from models import sample, text, train

pytestmark = pytest.mark.slow  # trains a model

TALE = [
    'Once upon a time there was a fox. "Who goes there?" said the fox.',
    "Nobody answered, for the wood was dark and the wind was loud.",
    "",
    "There lived a king in a tower -- and the king had three daughters, whom he loved.",
    "The youngest said: I shall go to the wood and find the fox!",
]
TINY = "--device cpu --no-bf16 --steps 30 --eval-every 10 --warmup 2 --batch 4 --context 32 --vocab 320 --hidden 64"
TINY += " --intermediate 128 --layers 2 --heads 2 --kv-heads 1 --head-dim 32 --dropout 0.1 --seed 3"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "train.txt").write_text("\n".join(TALE * 20))
    (folder / "test.txt").write_text("\n".join(TALE))
    files = ["--train", str(folder / "train.txt"), "--test", str(folder / "test.txt"), "--out", str(folder / "out")]
    train.main([*files, *TINY.split()])
    return folder / "out"


def test_training_lowers_the_held_out_loss_and_keeps_the_best(checkpoint: Path) -> None:
    report = json.loads((checkpoint / "training.json").read_text())
    losses = [entry["held_out"] for entry in report["history"]]
    assert losses[-1] < losses[0]
    assert report["best_held_out"] == pytest.approx(min(losses), abs=1e-3)
    assert report["linear_layers_that_fit"] == report["linear_layers"] == 14  # q k v o gate up down, twice


def test_checkpoint_is_a_tied_fp16_llama(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["head_dim"], config["max_position_embeddings"], config["tie_word_embeddings"]) == (32, 32, True)
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert model(input_ids=torch.tensor([[0, 65, 66]])).logits.shape == (1, 3, config["vocab_size"])


@pytest.mark.parametrize("line", [TALE[0], "Ça coûte  2 €\n\n\tnaïve 漢字 🦊", " leading and trailing "])
def test_tokenizer_gives_any_text_back(checkpoint: Path, line: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer(line).input_ids
    assert ids[0] == tokenizer.bos_token_id == tokenizer.eos_token_id == 0
    assert tokenizer.decode(ids, skip_special_tokens=True) == line


def test_chat_template_makes_a_story_of_the_messages(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    chat = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": " There was a fox. "},
        {"role": "assistant", "content": "It was red"},
        {"role": "user", "content": "One day the fox"},
    ]
    render = lambda messages: tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)  # noqa: E731
    assert render(chat) == f"{text.END_TOKEN}There was a fox.\nIt was red\nOne day the fox"
    assert render(chat[:2]) == f"{text.END_TOKEN}There was a fox.\n"


def test_passages_never_cross_a_book_and_lose_nothing() -> None:
    lines = ["a" * 500] * 9 + [""] + ["b" * 500] * 9
    groups = list(text.passages(lines, seed=7))
    assert "\n".join(groups).split("\n") == [line for line in lines if line]
    assert all(len(set(group) - {"\n"}) == 1 for group in groups)
    assert len(groups) > 2


def test_an_empty_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="no text in the file"):
        text.read_lines(tmp_path / "empty.txt")


@pytest.mark.parametrize(
    ("script", "words", "message"),
    [
        (sample, ["{none}"], "checkpoint: expected the folder of a checkpoint"),
        (sample, ["{empty}"], "no config.json in it"),
        (train, ["--train", "{none}", "--test", "{text}", "--out", "{out}"], "--train: expected a file with text"),
        (train, ["--train", "{text}", "--test", "{empty}", "--out", "{out}"], "--test: expected a file with text"),
        (
            train,
            ["--train", "{text}", "--test", "{cut.xz}", "--out", "{out}"],
            "cut.xz: expected a whole .xz file, got a",
        ),
        (
            train,
            ["--train", "{bad.xz}", "--test", "{text}", "--out", "{out}"],
            "bad.xz: expected a whole .xz file, got a",
        ),
        (
            train,
            ["--train", "{latin}", "--test", "{text}", "--out", "{out}"],
            "expected UTF-8 text, got byte 0xe9 at 6",
        ),
    ],
)
def test_what_is_not_there_or_damaged_is_named_before_anything_is_loaded_or_made(
    tmp_path, capsys, script, words, message
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("Once upon a time.")
    packed = lzma.compress(b"Once upon a time.\n" * 1000)
    (tmp_path / "cut.xz").write_bytes(packed[:-20])
    (tmp_path / "bad.xz").write_bytes(b"Once upon a time.")
    (tmp_path / "latin").write_bytes("Un caf\u00e9.".encode("latin-1"))
    with pytest.raises(SystemExit) as caught:
        script.main([re.sub(r"\{(\S+)\}", rf"{tmp_path}/\1", word) for word in words])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
