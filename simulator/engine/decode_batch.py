"""The requests that decode, as counters: what a step needs to know costs the same for one request and for five hundred.

Each decode step gives every request of the batch one token. So, with ``count`` the decode steps since the engine started,
a request is described by constants: it holds ``base + count`` KV entries and has its last token when the count reaches
``finish_at``. Entries of all together are one number; the requests that finish at a count are found in a calendar; and
those that need a new block in a step are those of one phase, the count modulo the block size. Pure.
"""

from heapq import heappop, heappush

from simulator.engine.request import SimRequest


class DecodeBatch:
    """The decoding requests of one engine."""

    __slots__ = ("_block", "_calendar", "_finish_counts", "count", "fp16_count", "kv_tokens", "phases", "size")

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self.size = 0
        self.kv_tokens = 0  # entries of all together
        self.count = 0  # decode steps so far
        self.fp16_count = 0  # those of them in FP16
        self.phases = [0] * block_tokens  # requests by the phase that takes a new block
        self._calendar: dict[int, list[SimRequest]] = {}  # by finish_at
        self._finish_counts: list[int] = []  # heap of its keys

    @property
    def next_finish(self) -> int:
        """The count at which the next request is done; there must be one."""
        return self._finish_counts[0]

    def blocks_needed(self) -> int:
        """New blocks that the next step takes."""
        return self.phases[self.count % self._block]

    def stepped(self, is_fp8: bool, steps: int = 1) -> None:
        """Every request has got ``steps`` tokens."""
        self.kv_tokens += steps * self.size
        self.count += steps
        self.fp16_count += steps * (not is_fp8)

    def enter(self, request: SimRequest) -> None:
        """Add a request that has entries for all ``target`` tokens and the token that follows them."""
        count = self.count
        request.base = request.target - count
        request.finish_at = count + request.output_tokens - request.generated
        request.fp16_mark = self.fp16_count
        self.size += 1
        self.kv_tokens += request.target
        self.phases[-request.base % self._block] += 1
        if request.finish_at in self._calendar:
            self._calendar[request.finish_at].append(request)
        else:
            self._calendar[request.finish_at] = [request]
            heappush(self._finish_counts, request.finish_at)

    def finish_due(self) -> tuple[list[SimRequest], int]:
        """Take out the requests that have their last token now: (they, the blocks they held)."""
        if not self._finish_counts or self._finish_counts[0] != self.count:
            return [], 0
        heappop(self._finish_counts)
        due = self._calendar.pop(self.count)
        return due, sum([self._leave(request) for request in due])

    def preempt(self, request: SimRequest) -> int:
        """Take out one that is not done; returns the blocks it held."""
        self._calendar[request.finish_at].remove(request)
        request.generated = request.output_tokens - (request.finish_at - self.count)
        return self._leave(request)

    def _leave(self, request: SimRequest) -> int:
        """Returns the blocks held; notes in which precision the request's tokens were sampled."""
        entries = request.base + self.count
        self.size -= 1
        self.kv_tokens -= entries
        self.phases[-request.base % self._block] -= 1
        in_fp16 = self.fp16_count - request.fp16_mark
        request.completion_fp16 += in_fp16
        request.completion_fp8 += entries - request.target - in_fp16
        return -(-entries // self._block)
