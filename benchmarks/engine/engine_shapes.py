"""The published model shapes that whole engines are measured on, as Hugging Face configurations for dummy weights."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
TOKENIZER = Path(__file__).resolve().parents[2] / "models" / "llama-8b-shape"
FP16_BYTES = 2


class Shape(NamedTuple):
    """A model of the Llama family."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int

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


SHAPES = {
    "llama-8b": Shape(4096, 14336, 32, 32, 8, 128, 128256),  # Llama 3.1 8B
    "mistral-24b": Shape(5120, 32768, 40, 32, 8, 128, 131072),  # the language model of Mistral Small 3.1 24B
    "llama-70b": Shape(8192, 28672, 80, 64, 8, 128, 128256),  # Llama 3.1 70B
}
MIXTURES: dict[str, dict[str, Any]] = {  # of experts; what their configurations have of their own
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "rope_theta": 1000000.0,
    },
}
NAMES = (*SHAPES, *MIXTURES)
COMMON: dict[str, Any] = {
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "dtype": "float16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config_of(model: str) -> dict[str, Any]:
    """Return the Hugging Face configuration of a published shape."""
    if model in MIXTURES:
        return {**COMMON, **MIXTURES[model]}
    shape = SHAPES[model]
    return {
        **COMMON,
        **LLAMA,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocabulary,
        "rope_theta": 500000.0,
    }


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
