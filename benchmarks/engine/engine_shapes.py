"""The published model shapes that whole engines are measured on, of models/*-shape, for dummy weights."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, Self

MODELS = Path(__file__).resolve().parents[2] / "models"
TOKENIZER = MODELS / "llama-8b-shape"
VOCABULARIES = {  # as published, while the tokenizer in models/*-shape is that of the shipped model
    "llama-8b": 128256,  # Llama 3.1 8B
    "mistral-24b": 131072,  # the language model of Mistral Small 3.1 24B
    "llama-70b": 128256,  # Llama 3.1 70B
    "qwen3-30b-a3b": 151936,
}
NAMES = tuple(VOCABULARIES)
FP16_BYTES = 2


class Shape(NamedTuple):
    """A dense model of the Llama family."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> Self:
        """Return the shape of a Hugging Face configuration."""
        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        return cls(*(config[name] for name in names), config["head_dim"], config["vocab_size"])

    @property
    def linear_weights(self) -> int:
        """Number of weights of the linear layers that an engine nests."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, embedding and head included."""
        return FP16_BYTES * (self.linear_weights + 2 * self.vocabulary * self.hidden)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token's KV cache."""
        return 2 * FP16_BYTES * self.layers * self.kv_heads * self.head_size


def config_of(model: str) -> dict[str, Any]:
    """Return the Hugging Face configuration of a published shape."""
    config = json.loads((MODELS / f"{model}-shape" / "config.json").read_text())
    return {**config, "vocab_size": VOCABULARIES[model], "bos_token_id": 1, "eos_token_id": 2}


SHAPES = {name: Shape.of(config_of(name)) for name in NAMES[:3]}  # without experts


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
