"""Steps of exact and fast rows, as the rule of rows plans them: what they take of an engine's requests. Pure."""

from math import inf
from typing import NamedTuple

from nestedfp.modes import DirectiveMode
from nestedfp.steps.rows.row_rule import RowRule
from nestedfp.steps.rows.row_state import MOST_PLANNED, Decode, Prompt, RowPlan, RowState, first_due_s, fullness
from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import EngineTable
from simulator.engine.holding import Holding
from simulator.engine.request import SimRequest


class FilledByRow(NamedTuple):
    """A step; is_whole: every row is computed in FP16."""

    exact_rows: int
    fast_rows: int
    decodes: int
    kv_tokens: int
    is_whole: bool


class HoldingByRow(Holding):
    """An engine's requests in two classes."""

    def __init__(self, table: EngineTable) -> None:
        super().__init__(table)
        self.directive, self.rule = DirectiveMode.FP16, StepRule()
        self._rows = RowRule()
        self._has_classes = False  # whether requests are in the batch of their class

    def _fill_by_row(self, now_s: float, seen_s: float) -> FilledByRow:
        """Fill a step as the rule of rows plans it."""
        self._see(seen_s)
        if not self._has_classes:
            self._has_classes = True
            self._classify()
        while True:
            exact = [r for r in self.running if r not in self._partials and not r.is_fast]
            line = self._line(seen_s)
            plan = self._rows.plan(self._row_state(now_s, exact, line), self._times)
            if self._blocks_of(plan, exact, line) <= self.total_blocks - self.used_blocks:
                break
            self._preempt_last()
        for i in () if plan.is_whole else plan.demoted:
            exact[i].is_fast = True
            self._move(exact[i], self._batch, self._fast)
        for i in set(range(len(exact))) - {*plan.exact, *plan.demoted}:
            exact[i].is_resting = True
            self._move(exact[i], self._batch, self._resting)
        batch, fast = self._batch, self._fast
        self.used_blocks += batch.blocks_needed() + fast.blocks_needed()
        decodes, kv_tokens = batch.size + fast.size, batch.kv_tokens + fast.kv_tokens
        exact_rows, fast_rows = batch.size, fast.size
        for i, count, is_exact in plan.chunks:
            request = line[i]
            if request not in self._partials:
                self.waiting.remove(request)
                self.running[request] = None
                self._pinned += request.pinned
            request.is_fast = request.is_fast or not (is_exact or plan.is_whole)
            kv_tokens += request.computed
            self._take(request, count, self._more_blocks(request, count))
            exact_rows, fast_rows = exact_rows + count * is_exact, fast_rows + count * (not is_exact)
        if plan.is_whole:
            exact_rows, fast_rows = exact_rows + fast_rows, 0
        assert exact_rows + fast_rows > 0, "a request that fits the cache alone can always be scheduled"
        return FilledByRow(exact_rows, fast_rows, decodes, kv_tokens, plan.is_whole)

    def _classify(self) -> None:
        """Requests that steps of one precision have computed in FP8 are fast."""
        for request in [r for r in self.running if not r.is_fast]:
            decodes = request not in self._partials
            if decodes:
                self._move(request, self._batch, self._batch)  # which notes what it has had in FP8
            request.is_fast = request.prompt_fp8 + request.completion_fp8 > 0
            if decodes and request.is_fast:
                self._move(request, self._batch, self._fast)

    def _line(self, seen_s: float) -> list[SimRequest]:
        """The prompts that a step may compute parts of: begun ones, and those that fit into the cache as a whole."""
        line, free = list(self._partials), self.total_blocks - self.used_blocks
        for request in self.waiting:
            free -= -(-request.target // self._block)
            if request.queued_s > seen_s or free < 0 or len(line) == MOST_PLANNED:
                break
            line.append(request)
        return line

    def _row_state(self, now_s: float, exact: list[SimRequest], line: list[SimRequest]) -> RowState:
        deadlines_s, grace = self.rule.deadlines_s(self.directive), self.rule.tpot_grace_tokens
        assert deadlines_s is not None
        ttft_s, tpot_s = deadlines_s

        def decode(request: SimRequest) -> Decode:
            return Decode(self._due_s(request, tpot_s, grace), request.pinned)

        def prompt(request: SimRequest) -> Prompt:
            left_tokens, due_s = request.target - request.computed, first_due_s(request.arrived_s, ttft_s, now_s)
            is_exact = not request.is_fast and due_s > -inf
            return Prompt(left_tokens, due_s, is_exact, request.pinned, request in self._partials)

        fast = [r for r in self.running if r.is_fast and r not in self._partials]
        return RowState(
            now_s,
            [decode(request) for request in exact],
            [decode(request) for request in fast],
            [prompt(request) for request in line],
            self._max_seqs - len(self.running),
            self._budget,
            tpot_s,
            fullness(
                len(self.running) + len(self.waiting) - len(self._unseen),
                self._max_seqs,
                self.used_blocks / self.total_blocks,
            ),
        )

    def _due_s(self, request: SimRequest, tpot_s: float, grace: int) -> float:
        """When the next token of a request that decodes is due."""
        batch = self._resting if request.is_resting else self._fast if request.is_fast else self._batch
        generated = request.output_tokens - (request.finish_at - batch.count)
        return request.first_s + tpot_s * (generated + grace)

    def _blocks_of(self, plan: RowPlan, exact: list[SimRequest], line: list[SimRequest]) -> int:
        """New blocks that the step takes."""
        runs = [exact[i] for i in (*plan.exact, *plan.demoted)]
        decodes = sum([(r.base + self._batch.count) % self._block == 0 for r in runs]) + self._fast.blocks_needed()
        return decodes + sum([self._more_blocks(line[i], count) for i, count, _ in plan.chunks])
