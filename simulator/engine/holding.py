"""What a simulated engine holds: requests that wait, are computed and decode, and the blocks of its KV cache. Pure."""

from collections import deque

from controller.sliding_window import SlidingWindow
from nestedfp.steps.step_watch import StepWatch
from simulator.engine.cost_table import EngineTable
from simulator.engine.decode_batch import DecodeBatch
from simulator.engine.request import SimRequest
from simulator.engine.stats import StepTotals


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
        self._partials: dict[SimRequest, None] = {}  # those whose prompts are computed in part
        self.waiting_tokens = 0  # still to be computed in prefill
        self._pinned = 0  # running ones
        self._batch = DecodeBatch(self._block)  # the other running ones, and of them, once a directive goes by row,
        self._fast = DecodeBatch(self._block)  # those with a token in FP8, and those that sit out the step in progress
        self._resting = DecodeBatch(self._block)
        self.used_blocks = 0
        self._chunks: list[tuple[SimRequest, int]] = []  # of prompts, in the step in progress
        # statistics, as the live engine counts them
        self.stats = StepTotals()
        self.preemptions = 0
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

    def _see(self, seen_s: float) -> None:
        """Put those that had come by then in line."""
        while self._unseen and self._unseen[0].queued_s <= seen_s:
            self._unseen.popleft()

    def _continue_prefill(self, request: SimRequest, budget: int) -> int:
        """The next chunk of the one request that is between two chunks. It was admitted last, because a prompt is cut
        only where the budget ends; so that when blocks are short it is also the one to preempt."""
        count = min(request.target - request.computed, budget)
        needed = self._more_blocks(request, count)
        if self.used_blocks + needed > self.total_blocks:
            self._preempt_last()
            return budget
        self._take(request, count, needed)
        return budget - count

    def _admit(self, budget: int, seen_s: float) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._max_seqs:
            request = self.waiting[0]
            if request.queued_s > seen_s or self.used_blocks + -(-request.target // self._block) > self.total_blocks:
                return
            self.waiting.popleft()
            self.running[request] = None
            self._pinned += request.pinned
            count = min(request.target, budget)
            self._take(request, count, -(-count // self._block))
            budget -= count

    def _take(self, request: SimRequest, count: int, blocks: int) -> None:
        if count == 0:
            return
        request.computed += count
        self.used_blocks += blocks
        self.waiting_tokens -= count
        self._chunks.append((request, count))
        if request.computed < request.target:
            self._partials[request] = None
        else:
            self._partials.pop(request, None)

    def _more_blocks(self, request: SimRequest, count: int) -> int:
        return -(-(request.computed + count) // self._block) - -(-request.computed // self._block)

    def _move(self, request: SimRequest, source: DecodeBatch, goal: DecodeBatch) -> None:
        source.preempt(request)
        request.target = request.prompt_tokens + request.generated - 1
        goal.enter(request)

    def _reserve_decode_blocks(self) -> bool:
        """Take the blocks that this step's decodes need; returns whether a request was preempted for them."""
        preempted = False
        while (
            self.used_blocks + (needed := self._batch.blocks_needed() + self._fast.blocks_needed()) > self.total_blocks
        ):
            self._preempt_last()
            preempted = True
        self.used_blocks += needed
        return preempted

    def _preempt_last(self) -> None:
        """Take the request admitted last out of the batch, between two steps."""
        request, _ = self.running.popitem()
        self.preemptions += 1
        request.preemptions += 1
        self._pinned -= request.pinned
        if request in self._partials:
            del self._partials[request]
            self.waiting_tokens -= request.target - request.computed
            self.used_blocks -= -(-request.computed // self._block)
        else:
            self.used_blocks -= (self._fast if request.is_fast else self._batch).preempt(request)
            request.target = request.prompt_tokens + request.generated
        request.computed = request.prompt_fp16 = request.prompt_fp8 = 0
        request.is_fast = False
        self.waiting_tokens += request.target
        self.waiting.appendleft(request)

    def _finish(self, now_s: float, request: SimRequest) -> None:
        del self.running[request]
        self._pinned -= request.pinned
        request.finished_s = now_s
        request.outcome, request.generated = "finished", request.output_tokens
        self.finished.append(request)
        self.finished_count += 1

    def _finish_due(self, now_s: float) -> None:
        """Finish the requests whose last token the decode step just counted has brought."""
        for batch in (self._batch, self._fast):
            due, blocks = batch.finish_due()
            self.used_blocks -= blocks
            for request in due:
                self._finish(now_s, request)

    def oldest_wait_s(self, now_s: float) -> float:
        """Age of the request at the head of the queue."""
        return max(0.0, now_s - self.waiting[0].queued_s) if self.waiting else 0.0
