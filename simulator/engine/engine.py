"""One engine: continuous batching with chunked prefill as vLLM V1 schedules it, in simulated time. Pure.

Each step serves the running requests first, in the order of their admission (one token for each that decodes, a chunk
for one in prefill), then admits waiting ones first come, first served, while the token budget, ``max_num_seqs`` and the
KV cache allow; a request is admitted only if its whole prompt fits. When the running requests outgrow the KV cache, the
one admitted last is preempted: it loses its entries, returns to the head of the queue and is computed anew.

Cost: nothing loops over the requests of a batch (see ``DecodeBatch``), and a stretch of pure decode steps runs in one tight
loop. ``advance`` runs all steps that end by a given time, so that an engine costs nothing between the events that concern it.
"""

from math import inf

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.prompt_room import PromptRoom
from nestedfp.steps.step_rule import StepRule, StepSignals, choose
from simulator.engine.cost_table import EngineTable
from simulator.engine.request import SimRequest
from simulator.engine.row_steps import HoldingByRow
from simulator.engine.stats import MODES


class Engine(HoldingByRow):
    """A simulated engine; runs FP16 until a directive says otherwise, as the live one does."""

    def __init__(self, table: EngineTable) -> None:
        super().__init__(table)
        limits = table.engine
        self._costs = (table.fp16, table.fp8)  # by is_fp8
        self._mixed_s = table.mixed_s
        self._step_costs = table.step_costs()
        self._ahead = limits.async_scheduling
        # the step in progress
        self.ends_s = inf  # inf: idle
        self._began_s = 0.0
        self._decode_only = False  # it is one of a stretch, and not counted yet
        self._is_fp8 = False
        self._rows_fp8 = (False, False)  # of exact and of fast requests
        self._rows_of: tuple[int, int] | None = None  # exact and fast rows; None: of a step that was not planned by row
        self._step_decodes = 0

    # -- what the cluster does -----------------------------------------------------------------------------------------

    def add(self, now_s: float, request: SimRequest) -> None:
        """Queue a request; the engine must have been advanced to ``now_s``."""
        if self._decode_only:
            self._start(self._began_s, chosen=self._is_fp8)
        request.queued_s = now_s
        self.arrivals += 1
        self.arrived_tokens += request.prompt_tokens
        self.waiting_tokens += request.target
        request.has_room = self._margin.takes(self.waiting_tokens)
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
        return self.rule.deadlines_s(self.directive) is not None

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return self.ends_s < inf

    @property
    def next_change_s(self) -> float:
        """When the next step ends: until then no request does. A time that has passed where the engine has not been advanced."""
        return self.ends_s

    # -- room ----------------------------------------------------------------------------------------------------------

    def room(self, now_s: float) -> PromptRoom | None:
        """What it can take of prompts; the engine must have been advanced to the present. None: the rule does not ask."""
        mode = Mode.FP16 if self.directive is DirectiveMode.FP16 else Mode.FP8
        decodes, ends_s = self._batch.size + self._fast.size, self.ends_s if self.busy else now_s
        return self._watch.room(
            self.rule,
            mode,
            now_s,
            decodes=decodes,
            line_tokens=self.waiting_tokens,
            ends_s=ends_s,
            slack_s=self._slack_s(now_s),
        )

    def _slack_s(self, now_s: float) -> float:
        """How long until the next token of a running request is due; infinity: of none, or the rule does not ask."""
        if self.rule.room_ttft_s is None or self.rule.exact_step_s is None:
            return inf
        tpot_s, grace = self.rule.exact_step_s, self.rule.tpot_grace_tokens
        decodes = [request for request in self.running if request not in self._partials]
        return min([self._due_s(request, tpot_s, grace) for request in decodes], default=inf) - now_s

    def capacity_tokens_per_s(self, mode: Mode) -> float | None:
        """What steps of ``exact_step_s`` compute in a second; None: the rule does not ask."""
        return self._watch.capacity_tokens_per_s(self.rule, mode)

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
            filled = self._fill_by_row(now_s, seen_s)
            rows = (filled.exact_rows, filled.fast_rows)
            self.stats.scheduled_rows(*rows)
            self._is_fp8, self._rows_fp8, self._rows_of = rows[0] == 0, (False, not filled.is_whole), rows
            self._step_decodes, self._began_s = filled.decodes, now_s
            self.ends_s = now_s + self._mixed_s(*rows, filled.decodes, filled.kv_tokens)
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
        is_fp8 = self._chooses_fp8(tokens) if chosen is None else chosen
        self.stats.scheduled(is_fp8, tokens)
        self._is_fp8, self._rows_fp8, self._rows_of = is_fp8, (is_fp8, is_fp8), None
        self._step_decodes, self._began_s = decodes, now_s
        self.ends_s = now_s + self._costs[is_fp8].step_s(tokens, decodes, kv_tokens)

    # -- steps of one precision ----------------------------------------------------------------------------------------

    def _prompt_budget(self, decodes: int) -> int:
        """Prompt tokens that a step may hold beside the decodes."""
        is_exact = self.directive is DirectiveMode.FP16
        return (self._watch.exact_budget_tokens(self.rule, decodes) if is_exact else self._budget) - decodes

    def _chooses_fp8(self, tokens: int) -> bool:
        """The precision of a step that has been filled."""
        signals = StepSignals(tokens, self._pinned > 0, self._budget)
        return choose(signals, self.directive, self.rule, self._step_costs).mode is Mode.FP8

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
        if self._step_decodes:
            self.tpot.add(now_s, duration_s * 1e3, self._step_decodes)
            self._batch.stepped(self._rows_fp8[False])
            self._fast.stepped(self._rows_fp8[True])
            self._finish_due(now_s)
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
            request.first_s = now_s
            if request.has_room:
                self._margin.first_token(request.ttft_ms * 1e-3)
            self.ttft.add(now_s, request.ttft_ms)
        request.generated += 1
        request.completion_fp8 += is_fp8
        request.completion_fp16 += not is_fp8
        if request.generated == request.output_tokens:
            self.used_blocks -= -(-request.target // self._block)
            self._finish(now_s, request)
            return
        (self._fast if request.is_fast else self._batch).enter(request)

    def _decode_run(self, now_s: float, until_s: float) -> None:
        """Run the pure decode steps that end by ``until_s`` and leave the engine in the next step.

        A stretch without a finish is one sample of the statistics: its steps differ by the entries they add, which is
        less than a thousandth of a step. The last step is not worked out before something asks for it.
        """
        self._decode_only = False
        batch, phases, block = self._batch, self._batch.phases, self._block
        while decodes := batch.size:
            # One choice for the whole stretch: nothing that the rule looks at changes in it.
            is_fp8 = self._chooses_fp8(decodes)
            cost = self._costs[is_fp8]
            step_s, growth_s = cost.step_s(decodes, decodes, batch.kv_tokens), cost.growth_s(decodes)
            began_s, count = now_s, batch.count
            first, last = count, float(batch.next_finish)
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
                duration_s = (now_s - began_s) / done
                self._times.took(MODES[is_fp8], decodes, duration_s, with_prompts=False)
                self.tpot.add(now_s, duration_s * 1e3, done * decodes)
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
