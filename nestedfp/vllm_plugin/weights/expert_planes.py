"""Where a layer of nested experts keeps its planes: by the names of parameters, without vLLM."""

from typing import Any

import torch

STACKS = ("w13", "w2")  # vLLM's names: gate and up of each expert, and down
PLANES = ("weight_upper", "weight_lower")


def nested_experts(model: torch.nn.Module) -> list[tuple[str, Any]]:
    """Return the layers of a model whose experts have planes, with their names."""
    return [(name, module) for name, module in model.named_modules() if getattr(module, "nestedfp_experts", False)]
