"""FlashAttention's splits of a context in steps beyond vLLM's largest graph: one, so that such steps can be captured whole.

A captured kernel has its number of splits fixed. vLLM reserves memory for 32 of them up to its largest size and lets
FlashAttention choose above it, which no graph can follow. Above it there is nothing to choose: the tiles of some hundred
queries and every head of the KV cache fill a GPU without splits, and where they would not (few heads on each of many ranks),
one split is as exact.
"""

from collections.abc import Iterable
from typing import Any

from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

from nestedfp.hooks import around

_bounded_tokens = range(0)  # of steps with one split


def can_bound(builders: Iterable[type]) -> bool:
    """Whether all attention of a model is planned by the class whose splits ``bound`` bounds."""
    return set(builders) == {FlashAttentionMetadataBuilder}


def bound(above_tokens: int, up_to_tokens: int) -> None:
    """Give steps of more than ``above_tokens`` and up to ``up_to_tokens`` tokens one split, in this process. Idempotent."""
    global _bounded_tokens
    _bounded_tokens = range(above_tokens + 1, up_to_tokens + 1)
    around.put(FlashAttentionMetadataBuilder, "build", _build)


def _build(
    original: Any, builder: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
) -> Any:
    tokens = common_attn_metadata.num_actual_tokens
    if tokens not in _bounded_tokens or not builder.use_full_cuda_graph:
        return original(builder, common_prefix_len, common_attn_metadata, fast_build)
    before = builder.max_cudagraph_size, builder.max_num_splits
    builder.max_cudagraph_size, builder.max_num_splits = tokens, 1
    try:
        return original(builder, common_prefix_len, common_attn_metadata, fast_build)
    finally:
        builder.max_cudagraph_size, builder.max_num_splits = before
