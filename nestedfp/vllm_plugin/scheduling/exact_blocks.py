"""Which KV blocks hold exact FP16 values: so that what FP8 steps wrote during a burst does not outlive it.

A position of a sequence is exact when its own KV entry and all before it were written by FP16 steps: attention carries what
an FP8 step wrote into every later position, whatever computes that. So one number says it for a sequence: how many leading
positions are exact. A block is exact when its last position is. Blocks are marked when vLLM enters them into the prefix
cache, and when an FP8 step writes into the blocks of a sequence that was exact until then; a look-up that wants exact blocks
ends at the first one that is not.

Marks cost nothing per step: a block is marked once when it is full, a sequence once when it stops being exact.
"""

import functools
import sys
from typing import Any

from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

ALL = sys.maxsize  # exact positions of a sequence that no FP8 step has touched


class ExactBlocks:
    """Marks on the blocks of one engine's KV cache.

    Wraps the block pool's methods that enter blocks into the prefix cache and look them up. Every request must carry
    ``nestedfp_exact_tokens``.

    Attributes:
        wanted: whether look-ups find exact blocks only. Set before each request's look-up.
    """

    def __init__(self, kv_cache_manager: Any) -> None:
        self.wanted = False
        self._managers = kv_cache_manager.coordinator.single_type_managers
        self._pool = kv_cache_manager.block_pool
        self._inexact = bytearray(self._pool.num_gpu_blocks)  # by block id; right for every block in the prefix cache
        for name in ("get_cached_block", "cache_full_blocks", "cache_partial_block", "move_block_hashes"):
            setattr(self._pool, name, functools.partial(getattr(self, f"_{name}"), getattr(self._pool, name)))

    def no_longer_exact(self, request: Any, exact_tokens: int, written_from: int) -> None:
        """A sequence has only ``exact_tokens`` exact positions; it computes those from ``written_from`` on itself."""
        request.nestedfp_exact_tokens = exact_tokens
        for manager in self._managers:
            blocks = manager.req_to_blocks.get(request.request_id, ())
            for block in blocks[written_from // manager.block_size :]:
                self._inexact[block.block_id] = not block.is_null

    def exact_prefix(self, request_id: str, tokens: int) -> int:
        """Return how many of the first ``tokens`` positions of a sequence, all read from the prefix cache, are exact."""
        exact = tokens
        for manager in self._managers:
            blocks = manager.req_to_blocks.get(request_id, ())
            for index, block in enumerate(blocks[: -(-exact // manager.block_size)]):
                if self._inexact[block.block_id]:
                    exact = min(exact, index * manager.block_size)
                    break
        return exact

    def _get_cached_block(self, original: Any, block_hash: Any, kv_cache_group_ids: list[int]) -> Any:
        blocks = original(block_hash, kv_cache_group_ids)
        if blocks is None or not any(self._inexact[block.block_id] for block in blocks):
            return blocks
        exact = [self._exact_twin(make_block_hash_with_group_id(block_hash, group)) for group in kv_cache_group_ids]
        if None not in exact:
            return exact
        return None if self.wanted else blocks

    def _exact_twin(self, key: Any) -> Any:
        """Return an exact block among those that hold the same tokens, which several sequences may have computed."""
        same = self._pool.cached_block_hash_to_block._cache.get(key)
        twins = same.values() if isinstance(same, dict) else [same]
        return next((block for block in twins if not self._inexact[block.block_id]), None)

    def _cache_full_blocks(
        self,
        original: Any,
        request: Any,
        blocks: list[Any],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        exact_blocks = request.nestedfp_exact_tokens // block_size
        for index in range(num_cached_blocks, num_full_blocks):
            block = blocks[index]
            self._inexact[block.block_id] = index >= exact_blocks and not block.is_null
        return original(request, blocks, num_cached_blocks, num_full_blocks, block_size, *args, **kwargs)

    def _cache_partial_block(
        self, original: Any, request: Any, block: Any, num_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        self._inexact[block.block_id] = num_tokens > request.nestedfp_exact_tokens and not block.is_null
        return original(request, block, num_tokens, *args, **kwargs)

    def _move_block_hashes(self, original: Any, src_block: Any, dst_block: Any) -> Any:
        self._inexact[dst_block.block_id] = self._inexact[src_block.block_id]
        return original(src_block, dst_block)
