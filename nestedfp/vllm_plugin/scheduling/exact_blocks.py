"""Which KV blocks hold exact FP16 values: so that what FP8 steps wrote during a burst does not outlive it.

A position of a sequence is exact when its own KV entry and all before it were written by FP16 steps: attention carries what
an FP8 step wrote into every later position, whatever computes that. So one number says it for a sequence: how many leading
positions are exact. A block is exact when its last position is. Blocks are marked when vLLM enters them into the prefix
cache, and when an FP8 step writes into the blocks of a sequence that was exact until then; a look-up that wants exact blocks
takes others out of the prefix cache, for those that it has computed in their place.

Marks cost nothing per step: a block is marked once when it is full, a sequence once when it stops being exact.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision

ALL = sys.maxsize  # exact positions of a sequence that no FP8 step has touched


class ExactBlocks:
    """Marks on the blocks of one engine's KV cache.

    Wraps the block pool's methods that enter blocks into the prefix cache and look them up. Every request must carry
    ``nestedfp_exact_tokens`` and ``nestedfp_asked``.

    Args:
        kv_cache_manager: vLLM's ``KVCacheManager``.
        block_tokens: of a block of each group of layers.

    Attributes:
        wanted: whether look-ups find exact blocks only. Set before each request's look-up.
        settled: whether they find no blocks of the step being filled, whose precision is not decided, but of pinned requests.
    """

    def __init__(self, kv_cache_manager: Any, block_tokens: Sequence[int]) -> None:
        self.wanted = self.settled = False
        self._manager = kv_cache_manager
        self._block_tokens = block_tokens
        self._pool = kv_cache_manager.block_pool
        self._inexact: set[int] = set()  # block ids; right for every block in the prefix cache
        self._unsettled: set[int] = set()  # of the step being filled
        for name in ("get_cached_block", "cache_full_blocks", "cache_partial_block", "move_block_hashes"):
            setattr(self._pool, name, functools.partial(getattr(self, f"_{name}"), getattr(self._pool, name)))

    def begin_step(self) -> None:
        """What has been computed is decided; a step is about to be filled."""
        self._unsettled.clear()

    def no_longer_exact(self, request: Any, exact_tokens: int, written_from: int) -> None:
        """A sequence has only ``exact_tokens`` exact positions; it computes those from ``written_from`` on itself."""
        request.nestedfp_exact_tokens = exact_tokens
        for size, blocks in self._blocks_of(request.request_id):
            self._inexact.update(block.block_id for block in blocks[written_from // size :] if not block.is_null)

    def exact_prefix(self, request_id: str, tokens: int) -> int:
        """Return how many of the first ``tokens`` positions of a sequence, all read from the prefix cache, are exact."""
        exact = tokens
        for size, blocks in self._blocks_of(request_id):
            for index, block in enumerate(blocks[: -(-exact // size)]):
                if block.block_id in self._inexact:
                    exact = min(exact, index * size)
                    break
        return exact

    def _blocks_of(self, request_id: str) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the tokens of a block and a sequence's blocks, of each group of layers."""
        return zip(self._block_tokens, self._manager.get_blocks(request_id).blocks, strict=True)

    def _mark(self, block: Any, is_exact: bool) -> None:
        if is_exact or block.is_null:
            self._inexact.discard(block.block_id)
        else:
            self._inexact.add(block.block_id)

    def _get_cached_block(self, original: Any, block_hash: Any, kv_cache_group_ids: list[int]) -> Any:
        while (blocks := original(block_hash, kv_cache_group_ids)) is not None and self.wanted:
            inexact = self._inexact & {block.block_id for block in blocks}
            if not inexact:
                break
            # An exact block of the same tokens may stand behind it, or is about to: all requests can read that one.
            self._pool.evict_blocks(inexact)
        if blocks is not None and self.settled and not self._unsettled.isdisjoint(block.block_id for block in blocks):
            return None
        return blocks

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
            self._mark(blocks[index], index < exact_blocks)
        if request.nestedfp_asked is not AskedPrecision.EXACT:
            self._unsettled.update(block.block_id for block in blocks[num_cached_blocks:num_full_blocks])
        return original(request, blocks, num_cached_blocks, num_full_blocks, block_size, *args, **kwargs)

    def _cache_partial_block(
        self, original: Any, request: Any, block: Any, num_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        self._mark(block, num_tokens <= request.nestedfp_exact_tokens)
        if request.nestedfp_asked is not AskedPrecision.EXACT:
            self._unsettled.add(block.block_id)
        return original(request, block, num_tokens, *args, **kwargs)

    def _move_block_hashes(self, original: Any, src_block: Any, dst_block: Any) -> Any:
        self._mark(dst_block, src_block.block_id not in self._inexact)
        if src_block.block_id in self._unsettled:
            self._unsettled.add(dst_block.block_id)
        return original(src_block, dst_block)
