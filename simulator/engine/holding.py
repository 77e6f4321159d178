"""What a simulated engine holds: requests that wait, are computed and decode, and the blocks of its KV cache. Pure."""

from collections import deque
from collections.abc import Iterable

from controller.sliding_window import SlidingWindow
from nestedfp.steps.step_watch import StepWatch
from nestedfp.vllm_plugin.scheduling.accounting import EngineTotals
from simulator.engine.cost_table import EngineTable
from simulator.engine.request import SimRequest


class Holding:
    """The requests inside an engine, and what it counts of them."""

    def __init__(self, table: EngineTable) -> None:
        limits = table.engine
        self._budget = limits.max_num_batched_tokens
        self._watch = StepWatch(self._budget, table.step_costs())
        self._times, self._margin = self._watch.times, self._watch.margin
        self._max_seqs = limits.max_num_seqs
        self._block = limits.block_tokens
        self.total_blocks = limits.kv_tokens // limits.block_tokens
        self.waiting: deque[SimRequest] = deque()
        # Of the waiting: those that no step has been filled with knowledge of.
        self._unseen: deque[SimRequest] = deque()
        self.running: dict[SimRequest, None] = {}  # in order of admission
        self.waiting_tokens = 0  # still to be computed in prefill
        self._pinned = 0  # running ones
        self.used_blocks = 0
        # Of the step in progress: requests that get a token, and parts of prompts.
        self._decodes: list[SimRequest] = []
        self._chunks: list[tuple[SimRequest, int]] = []
        # statistics
        self.stats = EngineTotals()
        self.arrivals = 0
        self.arrived_tokens = 0
        self.finished: list[SimRequest] = []  # since the caller last took them
        self.finished_count = 0
        self.ttft = SlidingWindow()
        self.tpot = SlidingWindow()

    @property
    def ongoing(self) -> int:
        """Requests inside: what HAProxy compares."""
        return len(self.running) + len(self.waiting)

    def _decoding(self) -> list[SimRequest]:
        return [request for request in self.running if request.computed >= request.target]

    def _partials(self) -> list[SimRequest]:
        """Those whose prompts are computed in part."""
        return [request for request in self.running if request.computed < request.target]

    def _see(self, seen_s: float) -> None:
        """Put those that had come by then in line."""
        while self._unseen and self._unseen[0].queued_s <= seen_s:
            self._unseen.popleft()

    def _continue_prefill(self, request: SimRequest, budget: int) -> int:
        """The next chunk of a request that is between two chunks; when blocks are short the one admitted last goes."""
        count = min(request.target - request.computed, budget)
        if self.used_blocks + self._more_blocks(request, count) > self.total_blocks:
            self._preempt_last()
            return budget
        self._take(request, count)
        return budget - count

    def _admit(self, budget: int, seen_s: float) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._max_seqs:
            request = self.waiting[0]
            if request.queued_s > seen_s or self.used_blocks + self._blocks(request.target) > self.total_blocks:
                return
            self._begin(request)
            count = min(request.target, budget)
            self._take(request, count)
            budget -= count

    def _begin(self, request: SimRequest) -> None:
        self.waiting.remove(request)
        self.running[request] = None
        self._pinned += request.pinned

    def _take(self, request: SimRequest, count: int) -> None:
        if count == 0:
            return
        self.used_blocks += self._more_blocks(request, count)
        request.computed += count
        self.waiting_tokens -= count
        self._chunks.append((request, count))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def _more_blocks(self, request: SimRequest, count: int) -> int:
        return self._blocks(request.computed + count) - self._blocks(request.computed)

    def _new_blocks(self, decodes: Iterable[SimRequest]) -> int:
        """Blocks that a token for each of them takes."""
        block = self._block
        return sum([request.computed % block == 0 for request in decodes])

    def _reserve_decode_blocks(self) -> bool:
        """Take the blocks that all decodes need; returns whether a request was preempted for them."""
        preempted = False
        while True:
            self._decodes = self._decoding()
            needed = self._new_blocks(self._decodes)
            if self.used_blocks + needed <= self.total_blocks:
                break
            self._preempt_last()
            preempted = True
        self.used_blocks += needed
        return preempted

    def _preempt_last(self) -> None:
        """Take the request admitted last out of the batch, between two steps."""
        request, _ = self.running.popitem()
        request.preemptions += 1
        self._pinned -= request.pinned
        self.used_blocks -= self._blocks(request.computed)
        if request.computed < request.target:
            self.waiting_tokens -= request.target - request.computed
        else:
            request.target = request.prompt_tokens + request.generated
        request.computed = request.prompt_fp16 = request.prompt_fp8 = 0
        request.is_fast = False
        self.waiting_tokens += request.target
        self.waiting.appendleft(request)

    def _finish(self, now_s: float, request: SimRequest) -> None:
        del self.running[request]
        self.used_blocks -= self._blocks(request.computed)
        self._pinned -= request.pinned
        request.finished_s, request.outcome = now_s, "finished"
        self.finished.append(request)
        self.finished_count += 1

    def oldest_wait_s(self, now_s: float) -> float:
        """Age of the request at the head of the queue."""
        return max(0.0, now_s - self.waiting[0].queued_s) if self.waiting else 0.0
