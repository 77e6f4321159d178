"""LoRA adapters of random weights for the shipped model, as PEFT saves them."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

LINEAR = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (128, 256),
    "self_attn.v_proj": (128, 256),
    "self_attn.o_proj": (256, 256),
    "mlp.gate_proj": (896, 256),
    "mlp.up_proj": (896, 256),
    "mlp.down_proj": (256, 896),
}  # [n, k] of each layer's
LAYERS = 8


def matrices(seed: int = 1, rank: int = 4) -> dict[str, torch.Tensor]:
    """Return an adapter's tensors, strong enough to change what is said."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for layer in range(LAYERS):
        for name, (n, k) in LINEAR.items():
            stem = f"base_model.model.model.layers.{layer}.{name}"
            found[f"{stem}.lora_A.weight"] = (torch.randn(rank, k, generator=generator) * k**-0.5).half()
            found[f"{stem}.lora_B.weight"] = (torch.randn(n, rank, generator=generator) * 0.1).half()
    return found


def save(folder: Path, tensors: dict[str, torch.Tensor] | None = None, rank: int = 4) -> str:
    """Write an adapter; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(matrices(rank=rank) if tensors is None else tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)
