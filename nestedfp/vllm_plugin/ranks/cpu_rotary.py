"""vLLM's rotary embedding on a CPU, where the heads of a query are an axis of their own, as in latent attention.

Its kernel takes [tokens, heads * head_size]. Of other tensors it rotates every head as a token, by positions that it reads past
their end.
"""

from typing import Any

import torch
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from nestedfp.hooks import around


def install() -> None:
    """Have such queries rotated by vLLM's own form in torch. Idempotent."""
    around.put(RotaryEmbedding, "forward_cpu", _forward_cpu)


def _forward_cpu(
    original: Any, rotary: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
) -> Any:
    return (original if query.dim() == 2 else type(rotary).forward_native)(rotary, positions, query, key)
