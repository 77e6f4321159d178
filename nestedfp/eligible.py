"""Linear layers that never take the NestedFP format, by the names of their modules. Pure."""

# An FP8 mode of these would choose other experts for a token, not round its values.
ROUTERS = ("gate", "router", "shared_expert_gate")
# Multi-head latent attention (DeepSeek) reads its weight as plain FP16 and folds it into other products.
LATENT_UP = "kv_b_proj"


def is_router(module: str) -> bool:
    """Whether a module, ``model.layers.0.mlp.gate`` say, chooses experts."""
    return module.rpartition(".")[2] in ROUTERS


def is_latent_up(module: str) -> bool:
    """Whether a module is the up-projection of latent attention's keys and values."""
    return module.rpartition(".")[2] == LATENT_UP
