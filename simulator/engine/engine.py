"""One engine: continuous batching with chunked prefill as vLLM V1 schedules it, in simulated time. Pure.

Each step serves the running requests first, in the order of their admission (one token for each that decodes, a chunk
for one in prefill), then admits waiting ones first come, first served, while the token budget, ``max_num_seqs`` and the
KV cache allow; a request is admitted only if its whole prompt fits. When the running requests outgrow the KV cache, the
one admitted last is preempted: it loses its entries, returns to the head of the queue and is computed anew.

``advance`` runs all steps that end by a given time, so that an engine costs nothing between the events that concern it.
"""

from math import inf

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.prompt_room import PromptRoom
from nestedfp.steps.step_rule import StepRule, choose
from simulator.engine.cost_table import EngineTable
from simulator.engine.request import SimRequest
from simulator.engine.row_steps import HoldingByRow

# What a part of a prompt costs a step beside its tokens: the host prepares each request, attention has a part for each. Chosen so
# that 24B and 8B have as many exact answers as were measured around their knees (docs/benchmarks.md).
CHUNK_S = 0.6e-3


class Engine(HoldingByRow):
    """A simulated engine; runs FP16 until a directive says otherwise, as the live one does."""

    def __init__(self, table: EngineTable) -> None:
        super().__init__(table)
        self._step_s = table.mixed_s
        self._step_costs = table.step_costs()
        self._ahead = table.engine.async_scheduling
        # the step in progress
        self.ends_s = inf  # inf: idle
        self._began_s = 0.0
        self._rows_of = 0, 0  # computed in FP16 and in FP8
        self._rows_fp8 = False, False  # of exact and of fast requests

    # -- what the cluster does -----------------------------------------------------------------------------------------

    def add(self, now_s: float, request: SimRequest) -> None:
        """Queue a request; the engine must have been advanced to ``now_s``."""
        request.queued_s = now_s
        self.arrivals += 1
        self.arrived_tokens += request.prompt_tokens
        self.waiting_tokens += request.target
        request.has_room = self._margin.takes(self.waiting_tokens)
        self.waiting.append(request)
        self._unseen.append(request)
        if not self.busy:
            self._start(now_s)

    def advance(self, until_s: float) -> None:
        """Run every step that ends by ``until_s``, and begin the one after."""
        while self.ends_s <= until_s:
            now_s = self.ends_s
            self._complete(now_s)
            if self.running or self.waiting:
                self._start(now_s)
            else:
                self.ends_s = inf

    def direct(self, mode: DirectiveMode, rule: StepRule) -> None:
        """Put a directive in force from the next step on; the engine must have been advanced to the present."""
        self.directive, self.rule = mode, rule

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return self.ends_s < inf

    # -- room ----------------------------------------------------------------------------------------------------------

    def room(self, now_s: float) -> PromptRoom | None:
        """What it can take of prompts; the engine must have been advanced to the present. None: the rule does not ask."""
        mode = Mode.FP16 if self.directive is DirectiveMode.FP16 else Mode.FP8
        decodes, ends_s = len(self._decodes), self.ends_s if self.busy else now_s
        return self._watch.room(
            self.rule,
            mode,
            now_s,
            decodes=decodes,
            line_tokens=self.waiting_tokens,
            ends_s=ends_s,
            slack_s=self._slack_s(now_s),
            rows_per_s=self._rows.load.rows_per_s(now_s),
        )

    def _slack_s(self, now_s: float) -> float:
        """How long until the next token of a running request is due; infinity: of none, or the rule does not ask."""
        if self.rule.room_ttft_s is None or self.rule.exact_step_s is None:
            return inf
        tpot_s, grace = self.rule.exact_step_s, self.rule.tpot_grace_tokens
        decodes = [request for request in self._decoding() if request.generated]
        return min([request.due_s(tpot_s, grace) for request in decodes], default=inf) - now_s

    def capacity_tokens_per_s(self, mode: Mode) -> float | None:
        """What steps of ``exact_step_s`` compute in a second; None: the rule does not ask."""
        return self._watch.capacity_tokens_per_s(self.rule, mode)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _start(self, now_s: float) -> None:
        """Fill a step, choose its precision and begin it."""
        self._chunks = []
        # Filled ahead, a step knows the requests that were there when the step before began; so does the choice of its precision.
        seen_s = now_s if not self.running or not self._ahead else self._began_s
        if self.rule.deadlines_s(self.directive) is not None:
            exact, fast, kv_tokens, is_whole = self._fill_by_row(now_s, seen_s)
            self._rows_of, self._rows_fp8 = (exact, fast), (False, not is_whole)
        else:
            tokens, kv_tokens = self._fill(now_s, seen_s)
            is_fp8 = self._chooses_fp8(tokens)
            self._rows_of, self._rows_fp8 = (0, tokens) if is_fp8 else (tokens, 0), (is_fp8, is_fp8)
        self.stats.step(*self._rows_of, "")
        self._began_s = now_s
        took_s = self._step_s(*self._rows_of, len(self._decodes), kv_tokens)
        self.ends_s = now_s + took_s + CHUNK_S * len(self._chunks)

    def _fill(self, now_s: float, seen_s: float) -> tuple[int, int]:
        """Fill a step of one precision; return its tokens, and the KV entries that they attend to."""
        preempted = self._reserve_decode_blocks()
        decodes = len(self._decodes)
        is_exact = self.directive is DirectiveMode.FP16
        budget = (self._watch.exact_budget_tokens(self.rule, decodes) if is_exact else self._budget) - decodes
        kv_tokens = sum([request.computed for request in self._decodes])
        for request in self._partials():
            if request not in self.running:  # preempted for one before it
                continue
            before = request.computed
            budget = self._continue_prefill(request, budget)
            preempted = preempted or request.computed == 0
            kv_tokens += before if request.computed > before else 0
        if not decodes and not self._chunks:
            seen_s = now_s
        self._see(seen_s)
        if not preempted:
            self._admit(budget, seen_s)
        tokens = decodes + sum([count for _, count in self._chunks])
        assert tokens > 0, "a request that fits the cache alone can always be scheduled"
        return tokens, kv_tokens

    def _chooses_fp8(self, tokens: int) -> bool:
        """The precision of a step that has been filled."""
        has_pinned = self._pinned > 0
        mode, _ = choose(tokens, self._budget, self.directive, self.rule, self._step_costs, has_pinned=has_pinned)
        return mode is Mode.FP8

    # -- what a step brings --------------------------------------------------------------------------------------------

    def _complete(self, now_s: float) -> None:
        """What the step in progress has brought: tokens, first tokens, finished requests."""
        (exact_rows, fast_rows), duration_s = self._rows_of, now_s - self._began_s
        if not exact_rows or not fast_rows:
            self.stats.took(Mode.FP8 if fast_rows else Mode.FP16, duration_s * 1e3)
        self._times.rows_took(exact_rows, fast_rows, duration_s, with_prompts=bool(self._chunks))
        if self._decodes:
            self.tpot.add(now_s, duration_s * 1e3, len(self._decodes))
        for request in self._decodes:
            request.computed += 1
            self._sampled(now_s, request)
        for request, count in self._chunks:
            is_fp8, prompt = self._rows_fp8[request.is_fast], request.prompt_tokens
            in_prompt = min(request.computed, prompt) - min(request.computed - count, prompt)
            request.prompt_fp8 += in_prompt * is_fp8
            request.prompt_fp16 += in_prompt * (not is_fp8)
            if request.computed == request.target:
                self._prefilled(now_s, request)
            else:
                request.is_fast |= is_fp8

    def _prefilled(self, now_s: float, request: SimRequest) -> None:
        if request.generated == 0:
            request.first_s = now_s
            if request.has_room:
                self._margin.first_token(request.ttft_ms * 1e-3)
            self.ttft.add(now_s, request.ttft_ms)
        self._sampled(now_s, request)

    def _sampled(self, now_s: float, request: SimRequest) -> None:
        """A request has got a token, in the precision of its rows in the step."""
        is_fp8 = self._rows_fp8[request.is_fast]
        request.is_fast |= is_fp8
        request.generated += 1
        request.completion_fp8 += is_fp8
        request.completion_fp16 += not is_fp8
        if request.generated == request.output_tokens:
            self._finish(now_s, request)
