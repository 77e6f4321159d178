"""Steps of exact and fast rows, as the rule of rows plans them: what they take of an engine's requests. Pure."""

from math import inf

from nestedfp.modes import DirectiveMode
from nestedfp.steps.rows.row_rule import RowRule
from nestedfp.steps.rows.row_state import MOST_PLANNED, Decode, Prompt, RowPlan, RowState, first_due_s, fullness
from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import EngineTable
from simulator.engine.holding import Holding
from simulator.engine.request import SimRequest


class HoldingByRow(Holding):
    """An engine's requests in two classes."""

    def __init__(self, table: EngineTable) -> None:
        super().__init__(table)
        self.directive, self.rule = DirectiveMode.FP16, StepRule()
        self._rows = RowRule()

    def _fill_by_row(self, now_s: float, seen_s: float) -> tuple[int, int, int, bool]:
        """Fill a step as the rule of rows plans it.

        Returns exact rows, fast rows, KV entries that they attend to, and whether every row is computed in FP16.
        """
        self._see(seen_s)
        while True:
            decoding = self._decoding()
            exact, fast = [r for r in decoding if not r.is_fast], [r for r in decoding if r.is_fast]
            line = self._line(seen_s)
            plan = self._rows.plan(self._row_state(now_s, exact, fast, line), self._times)
            self._decodes = [exact[i] for i in (*plan.exact, *plan.demoted)] + fast
            if self._blocks_of(plan, line) <= self.total_blocks - self.used_blocks:
                break
            self._preempt_last()
        for i in () if plan.is_whole else plan.demoted:
            exact[i].is_fast = True
        self.used_blocks += self._new_blocks(self._decodes)
        kv_tokens = sum([request.computed for request in self._decodes])
        fast_rows = sum([request.is_fast for request in self._decodes])
        exact_rows = len(self._decodes) - fast_rows
        for i, count, is_exact in plan.chunks:
            request = line[i]
            if request not in self.running:
                self._begin(request)
            request.is_fast = request.is_fast or not (is_exact or plan.is_whole)
            kv_tokens += request.computed
            self._take(request, count)
            exact_rows, fast_rows = exact_rows + count * is_exact, fast_rows + count * (not is_exact)
        if plan.is_whole:
            exact_rows, fast_rows = exact_rows + fast_rows, 0
        assert exact_rows + fast_rows > 0, "a request that fits the cache alone can always be scheduled"
        return exact_rows, fast_rows, kv_tokens, plan.is_whole

    def _line(self, seen_s: float) -> list[SimRequest]:
        """The prompts that a step may compute parts of: begun ones, and those that fit into the cache as a whole."""
        line, free = self._partials(), self.total_blocks - self.used_blocks
        for request in self.waiting:
            free -= self._blocks(request.target)
            if request.queued_s > seen_s or free < 0 or len(line) == MOST_PLANNED:
                break
            line.append(request)
        return line

    def _row_state(
        self, now_s: float, exact: list[SimRequest], fast: list[SimRequest], line: list[SimRequest]
    ) -> RowState:
        deadlines_s, grace = self.rule.deadlines_s(self.directive), self.rule.tpot_grace_tokens
        assert deadlines_s is not None
        ttft_s, tpot_s = deadlines_s

        def decode(request: SimRequest) -> Decode:
            return Decode(request.due_s(tpot_s, grace), request.pinned)

        def prompt(request: SimRequest) -> Prompt:
            left_tokens, due_s = request.target - request.computed, first_due_s(request.arrived_s, ttft_s, now_s)
            is_exact = not request.is_fast and due_s > -inf
            return Prompt(left_tokens, due_s, is_exact, request.pinned, request in self.running)

        return RowState(
            now_s,
            [decode(request) for request in exact],
            [decode(request) for request in fast],
            [prompt(request) for request in line],
            self._max_seqs - len(self.running),
            self._budget,
            tpot_s,
            fullness(self.ongoing - len(self._unseen), self._max_seqs, self.used_blocks / self.total_blocks),
        )

    def _blocks_of(self, plan: RowPlan, line: list[SimRequest]) -> int:
        """New blocks that the step takes."""
        chunks = sum([self._more_blocks(line[i], count) for i, count, _ in plan.chunks])
        return self._new_blocks(self._decodes) + chunks
