"""The published model shapes that whole engines are measured on, of models/*-shape, for dummy weights."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

MODELS = Path(__file__).resolve().parents[2] / "models"
TOKENIZER = MODELS / "llama-8b-shape"
VOCABULARIES = {  # as published, while the tokenizer in models/*-shape is that of the shipped model
    "llama-8b": 128256,  # Llama 3.1 8B
    "mistral-24b": 131072,  # the language model of Mistral Small 3.1 24B
    "llama-70b": 128256,  # Llama 3.1 70B
    "qwen3-30b-a3b": 151936,
}
NAMES = tuple(VOCABULARIES)
DENSE = NAMES[:3]


def config_of(model: str) -> dict[str, Any]:
    """Return the Hugging Face configuration of a published shape."""
    config = json.loads((MODELS / f"{model}-shape" / "config.json").read_text())
    return {**config, "vocab_size": VOCABULARIES[model], "bos_token_id": 1, "eos_token_id": 2}


def model_folder(model: str) -> Path:
    """Write a shape's folder: configuration and a tokenizer that has a text for every id; return its path.

    The path is the same every time, so that vLLM finds what it compiled before.
    """
    folder = Path(tempfile.gettempdir()) / f"nestedfp-http-{os.getuid()}" / model
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(model)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text((TOKENIZER / "tokenizer_config.json").read_text())
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text())
    fill(tokenizer["model"]["vocab"], config["vocab_size"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def fill(vocabulary: dict[str, int], size: int) -> None:
    """Add a text of a word's length for every id of a byte-level vocabulary that has none. No merge leads to them."""
    known = set(vocabulary.values())
    vocabulary.update({f"Ġx{index}": index for index in range(size) if index not in known})
