"""One engine: continuous batching with chunked prefill as vLLM V1 schedules it, in simulated time. Pure.

Each step serves the running requests first, in the order of their admission (one token for each that decodes, a chunk
for one in prefill), then admits waiting ones first come, first served, while the token budget, ``max_num_seqs`` and the
KV cache allow; a request is admitted only if its whole prompt fits. When the running requests outgrow the KV cache, the
one admitted last is preempted: it loses its entries, returns to the head of the queue and is computed anew.

Cost: nothing loops over the requests of a batch (see ``DecodeBatch``), and a stretch of pure decode steps runs in one tight
loop. ``advance`` runs all steps that end by a given time, so that an engine costs nothing between the events that concern it.
"""

from collections import deque
from math import ceil, inf

from controller.sliding_window import SlidingWindow
from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.prompt_room import PromptRoom, RoomMargin, capacity_tokens_per_s, prompt_room
from nestedfp.steps.row_rule import MOST_PLANNED, Decode, Prompt, RowPlan, RowRule, RowState, first_due_s
from nestedfp.steps.step_fill import FillWatch
from nestedfp.steps.step_rule import StepRule, StepSignals, choose
from nestedfp.steps.step_slack import StepSlack, StepTimes
from simulator.engine.cost_table import EngineTable
from simulator.engine.decode_batch import DecodeBatch
from simulator.engine.request import SimRequest
from simulator.engine.stats import MODES, StepTotals


class Engine:
    """A simulated engine; runs FP16 until a directive says otherwise, as the live one does."""

    def __init__(self, table: EngineTable) -> None:
        limits = table.engine
        self._costs = (table.fp16, table.fp8)  # by is_fp8
        self._mixed_s = table.mixed_s
        self._step_costs = table.step_costs()
        self._times = StepTimes(self._step_costs)
        self._budget = limits.max_num_batched_tokens
        self._slack = StepSlack(self._times.s_per_prompt_token(self._budget))
        self._margin = RoomMargin()
        self._max_seqs = limits.max_num_seqs
        self._fill = FillWatch(limits.max_num_seqs)
        self._ahead = limits.async_scheduling
        self._mixes = limits.mixed_steps
        self._block = limits.block_tokens
        self.total_blocks = limits.kv_tokens // limits.block_tokens
        self.directive = DirectiveMode.FP16
        self.rule = StepRule()
        # requests
        self.waiting: deque[SimRequest] = deque()
        self._unseen: deque[SimRequest] = (
            deque()
        )  # of the waiting: those that no step has been filled with knowledge of
        self.running: dict[SimRequest, None] = {}  # in order of admission
        self._partials: dict[SimRequest, None] = {}  # those whose prompts are computed in part
        self.waiting_tokens = 0  # still to be computed in prefill
        self._pinned = 0  # running ones
        self._batch = DecodeBatch(self._block)  # the other running ones, and of them, once a directive goes by row,
        self._fast = DecodeBatch(self._block)  # those with a token in FP8, and those that sit out the step in progress
        self._resting = DecodeBatch(self._block)
        self._rows = RowRule()
        self._has_classes = False  # whether requests are in the batch of their class
        self.used_blocks = 0
        # the step in progress
        self.ends_s = inf  # inf: idle
        self._began_s = 0.0
        self._decode_only = False  # it is one of a stretch, and not counted yet
        self._is_fp8 = False
        self._rows_fp8 = (False, False)  # of exact and of fast requests
        self._rows_of: tuple[int, int] | None = None  # exact and fast rows; None: of a step that was not planned by row
        self._step_decodes = 0
        self._chunks: list[tuple[SimRequest, int]] = []
        # statistics, as the live engine counts them
        self.stats = StepTotals()
        self.preemptions = 0
        self.arrivals = 0
        self.arrived_tokens = 0
        self.finished: list[SimRequest] = []  # since the caller last took them
        self.finished_count = 0
        self.ttft = SlidingWindow()
        self.tpot = SlidingWindow()

    # -- what the cluster does -----------------------------------------------------------------------------------------

    def add(self, now_s: float, request: SimRequest) -> None:
        """Queue a request; the engine must have been advanced to ``now_s``."""
        if self._decode_only:
            self._start(self._began_s, chosen=self._is_fp8)
        request.queued_s = now_s
        self.arrivals += 1
        self.arrived_tokens += request.prompt_tokens
        self.waiting_tokens += request.target
        request.line_tokens = self.waiting_tokens
        self.waiting.append(request)
        self._unseen.append(request)
        if self.ends_s == inf:
            self._start(now_s)

    def advance(self, until_s: float) -> None:
        """Run every step that ends by ``until_s``, and begin the one after."""
        while self.ends_s <= until_s:
            now_s = self._began_s
            if not self._decode_only:
                now_s = self.ends_s
                self._complete(now_s)
            if self._by_row or self._fast.size or self._resting.size:
                self._start_if_any(now_s)
            elif self.waiting or self._partials:
                self._start(now_s)
            else:
                self._decode_run(now_s, until_s)

    def direct(self, mode: DirectiveMode, rule: StepRule) -> None:
        """Put a directive in force from the next step on; the engine must have been advanced to the present."""
        if self._decode_only:
            self._start(self._began_s, chosen=self._is_fp8)
        self.directive, self.rule = mode, rule
        self._has_classes = self._has_classes and self._by_row

    @property
    def _by_row(self) -> bool:
        return self._mixes and self.directive is DirectiveMode.AUTO and self.rule.rows_ttft_s is not None

    def unfinished(self) -> list[SimRequest]:
        """The requests inside, in queue order: what is lost when the engine dies."""
        return [*self.running, *self.waiting]

    @property
    def ongoing(self) -> int:
        """Requests inside: what HAProxy compares."""
        return len(self.running) + len(self.waiting)

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return self.ends_s < inf

    @property
    def next_change_s(self) -> float:
        """When the next step ends: until then no request does. A time that has passed where the engine has not been advanced."""
        return self.ends_s

    def stop(self) -> None:
        """The engine dies: nothing more happens."""
        self.ends_s = inf

    def written(self, began_s: float, ended_s: float, tokens: int) -> float:
        """Tokens have been made; returns by how many seconds their way to the clients has become longer: here there is none."""
        return 0.0

    def delay_s(self, now_s: float) -> float:
        """Until a token made now is with its client."""
        return 0.0

    def oldest_wait_s(self, now_s: float) -> float:
        """Age of the request at the head of the queue."""
        return max(0.0, now_s - self.waiting[0].queued_s) if self.waiting else 0.0

    # -- room ----------------------------------------------------------------------------------------------------------

    def room(self, now_s: float) -> PromptRoom | None:
        """What it can take of prompts; the engine must have been advanced to the present. None: the rule does not ask."""
        rule = self.rule
        if rule.room_ttft_s is None or rule.exact_step_s is None:
            return None
        latest_s = self._slack.decodes.latest_end_s(rule.exact_step_s, 1 + rule.tpot_grace_tokens)
        mode = Mode.FP16 if self.directive is DirectiveMode.FP16 else Mode.FP8
        room = prompt_room(
            self._times,
            mode,
            decodes=self._batch.size + self._fast.size,
            line_tokens=self.waiting_tokens,
            busy_s=max(0.0, self.ends_s - now_s) if self.busy else 0.0,
            slack_s=latest_s - now_s,
            ttft_s=self._margin.within(mode, rule.room_ttft_s),
            step_s=rule.exact_step_s,
            budget_tokens=self._budget,
        )
        self._margin.said(mode, rule.room_ttft_s, room)
        return room

    def capacity_tokens_per_s(self, mode: Mode) -> float | None:
        """What steps of ``exact_step_s`` compute in a second; None: the rule does not ask."""
        step_s = self.rule.exact_step_s
        return None if step_s is None else capacity_tokens_per_s(self._times, mode, step_s, self._budget)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _start_if_any(self, now_s: float) -> None:
        if self.running or self.waiting:
            self._start(now_s)
        else:
            self._decode_only, self.ends_s = False, inf

    def _start(self, now_s: float, chosen: bool | None = None) -> None:
        """Fill a step, choose its precision and begin it.

        Args:
            now_s: when it begins.
            chosen: whether it is FP8, if it is one of a stretch and its precision is no longer open.
        """
        self._decode_only = False
        self._chunks = []
        for request in [r for r in self.running if r.is_resting]:
            request.is_resting = False
            self._move(request, self._resting, self._batch)
        # Filled ahead, a step knows the requests that were there when the step before began; so does the choice of its precision.
        seen_s = now_s if not self.running or not self._ahead else self._began_s
        if self._by_row:
            self._start_by_row(now_s, seen_s)
            return
        preempted = self._reserve_decode_blocks()
        batch, fast = self._batch, self._fast
        decodes = batch.size + fast.size
        budget = self._prompt_budget(decodes)
        kv_tokens = batch.kv_tokens + fast.kv_tokens
        for request in list(self._partials):
            before = request.computed
            budget = self._continue_prefill(request, budget)
            preempted = preempted or request.computed == 0
            kv_tokens += before if request.computed > before else 0
        if not decodes and not self._chunks:
            seen_s = now_s
        self._see(seen_s)
        if not preempted and self.waiting:
            self._admit(budget, seen_s)
        tokens = decodes + sum([count for _, count in self._chunks])
        assert tokens > 0, "a request that fits the cache alone can always be scheduled"
        is_fp8 = self._chooses_fp8(now_s, tokens, with_prompts=bool(self._chunks)) if chosen is None else chosen
        self.stats.scheduled(is_fp8, tokens)
        self._is_fp8, self._rows_fp8, self._rows_of = is_fp8, (is_fp8, is_fp8), None
        self._step_decodes, self._began_s = decodes, now_s
        self.ends_s = now_s + self._costs[is_fp8].step_s(tokens, decodes, kv_tokens)

    # -- steps by row --------------------------------------------------------------------------------------------------

    def _start_by_row(self, now_s: float, seen_s: float) -> None:
        """Begin the step that the rule of rows plans."""
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
        self.stats.scheduled_rows(exact_rows, fast_rows)
        self._is_fp8, self._rows_fp8 = exact_rows == 0, (False, not plan.is_whole)
        self._rows_of, self._step_decodes, self._began_s = (exact_rows, fast_rows), decodes, now_s
        self.ends_s = now_s + self._mixed_s(exact_rows, fast_rows, decodes, kv_tokens)

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
        ttft_s, tpot_s, grace = self.rule.rows_ttft_s, self.rule.rows_tpot_s, self.rule.tpot_grace_tokens
        assert ttft_s is not None
        assert tpot_s is not None

        def decode(request: SimRequest, batch: DecodeBatch) -> Decode:
            generated = request.output_tokens - (request.finish_at - batch.count)
            return Decode(request.first_s + tpot_s * (generated + grace), request.pinned)

        def prompt(request: SimRequest) -> Prompt:
            left_tokens, due_s = request.target - request.computed, first_due_s(request.arrived_s, ttft_s, now_s)
            is_exact = not request.is_fast and due_s > -inf
            return Prompt(left_tokens, due_s, is_exact, request.pinned, request in self._partials)

        fast = [r for r in self.running if r.is_fast and r not in self._partials]
        return RowState(
            now_s,
            [decode(request, self._batch) for request in exact],
            [decode(request, self._fast) for request in fast],
            [prompt(request) for request in line],
            self._max_seqs - len(self.running),
            self._budget,
            tpot_s,
        )

    def _blocks_of(self, plan: RowPlan, exact: list[SimRequest], line: list[SimRequest]) -> int:
        """New blocks that the step takes."""
        runs = [exact[i] for i in (*plan.exact, *plan.demoted)]
        decodes = sum([(r.base + self._batch.count) % self._block == 0 for r in runs]) + self._fast.blocks_needed()
        return decodes + sum([self._more_blocks(line[i], count) for i, count, _ in plan.chunks])

    def _more_blocks(self, request: SimRequest, count: int) -> int:
        return -(-(request.computed + count) // self._block) - -(-request.computed // self._block)

    def _move(self, request: SimRequest, source: DecodeBatch, goal: DecodeBatch) -> None:
        source.preempt(request)
        request.target = request.prompt_tokens + request.generated - 1
        goal.enter(request)

    # -- steps of one precision ----------------------------------------------------------------------------------------

    def _prompt_budget(self, decodes: int) -> int:
        """Prompt tokens that a step may hold beside the decodes."""
        most = self._budget - decodes
        limit_s = self.rule.exact_step_s
        if limit_s is None or self.directive is not DirectiveMode.FP16:
            return most
        return min(most, self._times.prompt_tokens_within(Mode.FP16, limit_s, decodes, self._budget))

    def _see(self, seen_s: float) -> None:
        """Put those that had come by then in line."""
        while self._unseen and self._unseen[0].queued_s <= seen_s:
            request = self._unseen.popleft()
            self._slack.prompts.arrived(request.index, request.arrived_s, request.target)

    def _chooses_fp8(self, now_s: float, tokens: int, *, with_prompts: bool) -> bool:
        """The precision of a step that has been filled."""
        late = self._late(now_s, tokens, with_prompts) if self._has_deadlines else None
        signals = StepSignals(tokens, self.oldest_wait_s(now_s), self._pinned > 0, self._budget, late)
        return choose(signals, self.directive, self.rule, self._step_costs).mode is Mode.FP8

    @property
    def _has_deadlines(self) -> bool:
        return self.directive is DirectiveMode.AUTO and self.rule.has_deadlines

    def _late(self, now_s: float, tokens: int, with_prompts: bool) -> str | None:
        """Which deadline the step would break in FP16, or that the engine fills up."""
        predicted_s = self._times.predicted_s(Mode.FP16, tokens, with_prompts=with_prompts)
        inside = len(self.running) + len(self.waiting) - len(self._unseen)  # without those on their way to it
        kv_usage = self.used_blocks / self.total_blocks
        fill = self._fill.late(self.rule, self._times, now_s, inside, kv_usage)  # learns from every step
        reserve_s = 0.0 if with_prompts else self._reserve_s(now_s, tokens)
        late = self._slack.late(self.rule, now_s, now_s + predicted_s, reserve_s=reserve_s)
        if with_prompts:
            self._slack.asked(late)
        return late or fill

    def _reserve_s(self, now_s: float, decodes: int) -> float:
        return self._slack.reserve_s(self.rule, self._times, now_s, decodes, self._budget)

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
        self._slack.prompts.computed(request.index, request.computed)
        if request.computed < request.target:
            self._partials[request] = None
        else:
            self._partials.pop(request, None)

    def _complete(self, now_s: float) -> None:
        """What the step in progress has brought: tokens, first tokens, finished requests."""
        is_fp8, duration_s, with_prompts = self._is_fp8, now_s - self._began_s, bool(self._chunks)
        if self._rows_of is None:
            self.stats.took(is_fp8, duration_s)
            tokens = self._step_decodes + sum([count for _, count in self._chunks])
            self._times.took(MODES[is_fp8], tokens, duration_s, with_prompts=with_prompts)
        else:
            self.stats.rows_took(*self._rows_of, duration_s)
            self._times.rows_took(*self._rows_of, duration_s, with_prompts=with_prompts)
        longer_s = self.written(self._began_s, now_s, self._step_decodes + len(self._chunks))
        if self._step_decodes:
            self.tpot.add(now_s, max(0.0, duration_s + longer_s) * 1e3, self._step_decodes)
            self._batch.stepped(self._rows_fp8[False])
            self._fast.stepped(self._rows_fp8[True])
            self._slack.decodes.stepped()
            self._finish_due(now_s)
        for request in [r for r in self.running if r.is_resting] if self._resting.size else ():
            generated = request.output_tokens - (request.finish_at - self._resting.count)
            self._slack.decodes.entered(request.index, request.first_s, generated)
        for request, count in self._chunks:
            is_fp8 = self._rows_fp8[request.is_fast]
            prompt = request.prompt_tokens
            in_prompt = min(request.computed, prompt) - min(request.computed - count, prompt)
            request.prompt_fp8 += in_prompt * is_fp8
            request.prompt_fp16 += in_prompt * (not is_fp8)
            if request.computed == request.target:
                self._sampled_by_prefill(now_s, request, is_fp8)

    def _sampled_by_prefill(self, now_s: float, request: SimRequest, is_fp8: bool) -> None:
        if request.generated == 0:
            request.first_s = now_s + self.delay_s(now_s)
            self._slack.prompts.left(request.index)
            self._margin.first_token(request.line_tokens, request.ttft_ms * 1e-3)
            self.ttft.add(now_s, request.ttft_ms)
        request.generated += 1
        request.completion_fp8 += is_fp8
        request.completion_fp16 += not is_fp8
        if request.generated == request.output_tokens:
            self.used_blocks -= -(-request.target // self._block)
            self._finish(now_s, request)
            return
        (self._fast if request.is_fast else self._batch).enter(request)
        self._slack.decodes.entered(request.index, request.first_s, request.generated)

    def _decode_run(self, now_s: float, until_s: float) -> None:
        """Run the pure decode steps that end by ``until_s`` and leave the engine in the next step.

        A stretch without a finish is one sample of the statistics: its steps differ by the entries they add, which is
        less than a thousandth of a step. The last step is not worked out before something asks for it.
        """
        self._decode_only = False
        batch, phases, block = self._batch, self._batch.phases, self._block
        while decodes := batch.size:
            # One choice for the whole stretch: but for deadlines, nothing that the rule looks at changes in it.
            is_fp8 = self._chooses_fp8(now_s, decodes, with_prompts=False)
            cost = self._costs[is_fp8]
            step_s, growth_s = cost.step_s(decodes, decodes, batch.kv_tokens), cost.growth_s(decodes)
            began_s, count = now_s, batch.count
            first, last = count, float(batch.next_finish)
            last = min(last, count + self._steps_until_another_choice(now_s, decodes, is_fp8))
            used_blocks, room = self.used_blocks, True
            while count < last:
                needed = phases[count % block]
                room = used_blocks + needed <= self.total_blocks
                if not room or now_s + step_s > until_s:
                    break
                used_blocks += needed
                now_s += step_s
                step_s += growth_s
                count += 1
            if done := count - first:
                self.used_blocks = used_blocks
                batch.stepped(is_fp8, done)
                self._slack.decodes.stepped(done)
                duration_s = (now_s - began_s) / done
                self._times.took(MODES[is_fp8], decodes, duration_s, with_prompts=False)
                gap_s = duration_s + self.written(began_s, now_s, done * decodes) / done
                self.tpot.add(now_s, max(0.0, gap_s) * 1e3, done * decodes)
                self.stats.scheduled(is_fp8, done * decodes, done)
                self.stats.took(is_fp8, duration_s, done)
            if not room:
                self._start(now_s)  # which preempts
                return
            if count < last:
                self._decode_only, self._is_fp8 = True, is_fp8
                self._began_s, self.ends_s = now_s, now_s + step_s
                return
            self._finish_due(now_s)
        self.ends_s = inf

    def _steps_until_another_choice(self, now_s: float, decodes: int, is_fp8: bool) -> float:
        """Decode steps of this precision until the mean TPOT of the most endangered request asks for the other one."""
        tpot_s = self.rule.tpot_deadline_s
        if tpot_s is None or not self._has_deadlines:
            return inf
        fp16_s = self._times.predicted_s(Mode.FP16, decodes, with_prompts=False)
        latest_s = self._slack.decodes.latest_end_s(tpot_s, 1 + self.rule.tpot_grace_tokens)
        # After an FP16 step, without what is kept back; negative: it is late.
        left_s = latest_s - now_s - fp16_s - self._reserve_s(now_s, decodes)
        if not is_fp8:
            return inf if fp16_s <= tpot_s else 1 + max(0, left_s // (fp16_s - tpot_s))
        gained_s = tpot_s - self._times.predicted_s(Mode.FP8, decodes, with_prompts=False)
        return inf if gained_s <= 0 else max(1, ceil(-left_s / gained_s))

    def _finish_due(self, now_s: float) -> None:
        """Finish the requests whose last token the decode step just counted has brought."""
        for batch in (self._batch, self._fast):
            due, blocks = batch.finish_due()
            self.used_blocks -= blocks
            for request in due:
                self._finish(now_s, request)

    # -- KV cache ------------------------------------------------------------------------------------------------------

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
            self._slack.prompts.computed(request.index, 0)
            self.used_blocks -= -(-request.computed // self._block)
        else:
            self.used_blocks -= (self._fast if request.is_fast else self._batch).preempt(request)
            self._slack.decodes.left(request.index)
            request.target = request.prompt_tokens + request.generated
        request.computed = request.prompt_fp16 = request.prompt_fp8 = 0
        request.is_fast = False
        self.waiting_tokens += request.target
        self.waiting.appendleft(request)

    def _finish(self, now_s: float, request: SimRequest) -> None:
        del self.running[request]
        self._pinned -= request.pinned
        self._slack.left(request.index)
        request.finished_s = max(request.first_s, now_s + self.delay_s(now_s))
        request.outcome, request.generated = "finished", request.output_tokens
        self.finished.append(request)
        self.finished_count += 1
