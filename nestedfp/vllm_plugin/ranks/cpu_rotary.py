"""vLLM's rotary embedding on a CPU, where the heads of a query are an axis of their own, as in latent attention.

Its kernel takes [tokens, heads * head_size]. Given [tokens, heads, head_size], it takes each head for a token and reads positions
past their end.
"""

from typing import Any

import torch
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from nestedfp.hooks import around


def install() -> None:
    """Have vLLM's PyTorch version rotate such queries. Idempotent."""
    around.put(RotaryEmbedding, "forward_cpu", _forward_cpu)


def _forward_cpu(
    original: Any, rotary: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
) -> Any:
    return (original if query.dim() == 2 else type(rotary).forward_native)(rotary, positions, query, key)
