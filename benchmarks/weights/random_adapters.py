"""LoRA adapters of random weights for every linear layer of a dense model, as PEFT saves them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def matrices(config: Mapping[str, Any], seed: int, rank: int) -> dict[str, torch.Tensor]:
    """Return the tensors of an adapter of a model with this Hugging Face configuration, strong enough to change what is said."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    layers = {f"self_attn.{name}_proj": (n, hidden) for name, n in {"q": q, "k": kv, "v": kv}.items()}
    layers |= {"self_attn.o_proj": (hidden, q), "mlp.down_proj": (hidden, inner)}
    layers |= {f"mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
    generator, found = torch.Generator().manual_seed(seed), {}
    for number in range(config["num_hidden_layers"]):
        for name, (n, k) in layers.items():
            stem = f"base_model.model.model.layers.{number}.{name}"
            found[f"{stem}.lora_A.weight"] = (torch.randn(rank, k, generator=generator) * k**-0.5).half()
            found[f"{stem}.lora_B.weight"] = (torch.randn(n, rank, generator=generator) * 0.1).half()
    return found


def save(folder: Path, tensors: dict[str, torch.Tensor], rank: int) -> str:
    """Write an adapter; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)
