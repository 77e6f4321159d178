"""Layers that never take the NestedFP format, by the names of their modules. Pure."""

import re

# An FP8 mode of these would choose other experts for a token, not round its values.
ROUTERS = ("gate", "router", "shared_expert_gate", "shared_experts_gate")
_EXPERT = re.compile(r"(^|\.)experts\.(\d+)\.\w+$")
# Multi-head latent attention (DeepSeek) reads its weight as plain FP16 and folds it into other products.
LATENT_UP = "kv_b_proj"
# Embeddings and output heads have kernels of their own in vLLM: it would not find their planes.
_OTHER_KERNELS = re.compile(r"(^|\.)(lm_head|wte|wpe|embed\w*|\w+_embed|\w*embeddings?)$")


def is_router(module: str) -> bool:
    """Whether a module, ``model.layers.0.mlp.gate`` or ``block_sparse_moe.router.layer`` say, chooses experts."""
    return not _EXPERT.search(module) and any(part in ROUTERS for part in module.split(".")[-2:])


def is_latent_up(module: str) -> bool:
    """Whether a module is the up-projection of latent attention's keys and values."""
    return module.rpartition(".")[2] == LATENT_UP


def experts_of(module: str) -> str | None:
    """Return the layer of experts that a projection of one of them belongs to; None: it is no expert's."""
    found = _EXPERT.search(module)
    return module[: found.start(2) - 1] if found else None


def is_no_linear(module: str) -> bool:
    """Whether a module is an embedding or an output head."""
    return bool(_OTHER_KERNELS.search(module))
