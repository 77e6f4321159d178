"""Layers that never take the NestedFP format, by the names of their modules. Pure."""

import re

# An FP8 mode of these would choose other experts for a token, not round its values.
ROUTERS = ("gate", "router", "shared_expert_gate")
# Multi-head latent attention (DeepSeek) reads its weight as plain FP16 and folds it into other products.
LATENT_UP = "kv_b_proj"
# Experts, embeddings and output heads have kernels of their own in vLLM: it would not find their planes.
_OTHER_KERNELS = re.compile(r"(^|\.)experts\.|(^|\.)(lm_head|wte|wpe|embed\w*|\w+_embed|\w*embeddings?)$")


def is_router(module: str) -> bool:
    """Whether a module, ``model.layers.0.mlp.gate`` say, chooses experts."""
    return module.rpartition(".")[2] in ROUTERS


def is_latent_up(module: str) -> bool:
    """Whether a module is the up-projection of latent attention's keys and values."""
    return module.rpartition(".")[2] == LATENT_UP


def is_no_linear(module: str) -> bool:
    """Whether a module is an expert, an embedding or an output head."""
    return bool(_OTHER_KERNELS.search(module))
