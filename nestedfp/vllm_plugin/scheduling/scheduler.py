"""The scheduler: chooses the precision of every step and attaches it to the step's SchedulerOutput.

One SchedulerOutput is broadcast to all tensor-parallel ranks, so the ranks cannot disagree. With async scheduling the
outputs are executed in the order in which they were scheduled, so the attached precision is the one that runs.
"""

import copy
import functools
import os
import secrets
import threading
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.device_clock import DeviceClock
from nestedfp.steps.row_rule import MOST_PLANNED
from nestedfp.steps.step_costs import StepCosts, slowest
from nestedfp.steps.step_rule import StepRule, StepSignals, choose
from nestedfp.vllm_plugin.directives import directive_receiver
from nestedfp.vllm_plugin.options import PluginOptions, rounds_kv
from nestedfp.vllm_plugin.ranks.timing.step_ends import SINCE_LAST_S
from nestedfp.vllm_plugin.scheduling import workers_answers
from nestedfp.vllm_plugin.scheduling.accounting import COUNTS_KEY, EngineTotals, RequestTokens
from nestedfp.vllm_plugin.scheduling.deadline_watch import DeadlineWatch, arrived_s, steady_s
from nestedfp.vllm_plugin.scheduling.exact_blocks import ALL, ExactBlocks
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision, asked_of
from nestedfp.vllm_plugin.scheduling.row_steps import RowStep, RowSteps, left_tokens
from nestedfp.vllm_plugin.scheduling.waiting import WaitingRequests

GRAMMAR_THREADS = 8
LOW_PRIORITY = 10
UNPLANNED_TOKENS = 64  # of a prompt that became ready while its step was being filled: the next one is planned with it


def compile_aside(manager: Any) -> None:
    """Have grammars compiled by more threads than vLLM's, at a low priority.

    A small grammar then does not wait behind large ones, nor a step for the processor. ``manager`` is vLLM's
    ``StructuredOutputManager``; one without a tokenizer compiles nothing.
    """
    if (before := getattr(manager, "executor", None)) is None:
        return
    # Linux keeps a niceness for each thread; those that the compiler starts inherit it.
    manager.executor = ThreadPoolExecutor(
        GRAMMAR_THREADS, "grammars", lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
    )
    before.shutdown()


class PrecisionMixin(WaitingRequests):
    """What we add to vLLM's scheduler; the base class is chosen by ``make_scheduler``.

    A step of 256 sequences takes a few milliseconds, so nothing here loops over all sequences of a step unless it has to: the
    sets below name the few that a step changes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = PluginOptions.of(self.vllm_config)
        # Mode, rule and epoch, replaced together: another thread may do so (directive_receiver.py).
        self._in_force = (*options.directive(), 0)
        self._epochs_order = False  # whether all directives have one author, whose epochs never fall
        self._directing = threading.Lock()
        self._step_costs: StepCosts | None = None
        self._fp16_only = options.fp16_only
        self._fp16_reads_fp8_blocks = options.fp16_reads_fp8_blocks
        self._rounds_kv = rounds_kv(self.vllm_config)
        self._fp8_share: float | None = None
        self._budget_tokens = self.max_num_scheduled_tokens  # which a step's precision may lower
        settings = self.scheduler_config
        # Where a prompt, or an image in it, is computed in one step or not at all, a lower budget would keep it waiting for ever.
        self._cuts_prompts = settings.enable_chunked_prefill and not settings.disable_chunked_mm_input
        self._watch = DeadlineWatch(self._budget_tokens, settings.max_num_seqs)
        self._rows = RowSteps(self._budget_tokens)
        self._planned: RowStep | None = None  # while vLLM fills a step that was planned by row
        self._everybody_runs = False  # for one step: the last plan gave nobody anything, for want of blocks
        self._totals = EngineTotals()
        self._arrivals = 0
        self._arrived_tokens = 0
        self._finished = 0
        self._clock = DeviceClock()
        self._last_end_s = 0.0  # of a step
        self._progress_s = steady_s()  # when a step last ended, or work came to an idle engine
        # Nobody outside can know it, so no request can name the cache that pinned requests share.
        self._pinned_salt = secrets.token_hex(16)
        ranks = self.vllm_config.parallel_config.decode_context_parallel_size  # a block's tokens lie on all of them
        specs = [group.kv_cache_spec for group in self.kv_cache_manager.kv_cache_config.kv_cache_groups]
        self._blocks = ExactBlocks(
            self.kv_cache_manager,
            [spec.block_size * (ranks if getattr(spec, "dcp_sharded", True) else 1) for spec in specs],
        )
        compile_aside(self.structured_output_manager)
        self._pinned: dict[str, Request] = {}
        self._in_prompt: dict[str, Request] = {}  # parts of their prompt are still to be computed or read
        self._exact: dict[str, Request] = {}  # no FP8 step has written or will be read in their KV entries
        self._may_end: dict[str, Request] = {}  # the front end may end them at any output: they have stop strings
        self._may_starve: dict[str, Request] = {}  # others may overtake them for ever: they have no deadlines
        self._ended: dict[str, Request] = {}  # ended by the step whose output is being taken

    # -- requests ------------------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        rid = request.request_id
        if rid not in self.requests:
            if not self.running and not self._any_waits():
                self._progress_s = steady_s()
            self._arrivals += 1
            self._arrived_tokens += request.num_prompt_tokens
            request.nestedfp_tokens = RequestTokens()
            request.nestedfp_earlier_tokens = 0  # sampled for a streaming session's earlier inputs
            self._arrives(request)
            request.nestedfp_first_token_s = None
            request.nestedfp_asked = asked_of(request.sampling_params or request.pooling_params)
            if request.nestedfp_asked is AskedPrecision.EXACT:
                self._pinned[rid] = request
                self._keep_off_shared_blocks(request)
            if request.sampling_params is not None and request.sampling_params.stop:
                self._may_end[rid] = request
            if self._by_priority and request.priority > 0:
                self._may_starve[rid] = request
            self._starts_over(request)
            super().add_request(request)
            if self._waits_for_turn(request):
                self._waits(request)
            return
        super().add_request(request)

    def _arrives(self, request: Request) -> None:
        # vLLM's queue of priorities goes by this too: a wall clock that is set back would let all later requests overtake.
        request.nestedfp_waits_since_s = request.arrival_time = arrived_s(request.arrival_time)
        request.nestedfp_has_room = False  # until it waits for its turn (deadline_watch.py)

    def _waits(self, request: Request) -> None:
        """A request waits for its turn, with a deadline unless others may overtake it for ever."""
        if request.request_id not in self._may_starve:
            self._watch.waits(request, request.priority if self._by_priority else 0)

    def _starts_over(self, request: Request) -> None:
        """No position of the request has been computed or read."""
        request.nestedfp_exact_tokens = ALL
        request.nestedfp_started = False
        request.nestedfp_class = "fast" if request.nestedfp_asked is AskedPrecision.FAST else "exact"
        self._in_prompt[request.request_id] = self._exact[request.request_id] = request

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        request.nestedfp_waits_since_s = steady_s()
        self._watch.preempted(request)
        self._starts_over(request)
        super()._preempt_request(request, *args, **kwargs)

    def _promoted(self, request: Request) -> None:
        request.nestedfp_waits_since_s = steady_s()
        self._waits(request)
        if not self.running and self._turn_waiting() in ([], [request]):
            self._progress_s = steady_s()

    def _update_request_as_session(self, session: Request, update: Any, *args: Any, **kwargs: Any) -> None:
        session.nestedfp_earlier_tokens += session.num_output_tokens  # vLLM makes them part of the prompt
        super()._update_request_as_session(session, update, *args, **kwargs)
        self._arrives(session)
        session.nestedfp_first_token_s = None
        self._waits(session)
        self._in_prompt[session.request_id] = session

    def _handle_stopped_request(self, request: Request, *args: Any, **kwargs: Any) -> bool:
        self._ended[request.request_id] = request
        self._watch.left(request.request_id)  # a session stays, and waits for its client: no deadline runs
        request.nestedfp_sampled = request.nestedfp_earlier_tokens + request.num_output_tokens
        finished: bool = super()._handle_stopped_request(request, *args, **kwargs)
        return finished

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._finished += 1
        for few in (self._pinned, self._in_prompt, self._exact, self._may_end, self._may_starve):
            few.pop(request.request_id, None)
        self._watch.left(request.request_id)
        return super()._free_request(request, *args, **kwargs)

    def _keep_off_shared_blocks(self, request: Request) -> None:
        """Give a pinned request a prefix cache, and an encoder cache, of its own kind.

        A cached block may have been written by an FP8 step. Blocks are found by a hash that starts from the request's
        salt, and every step of a pinned request runs FP16, so a salt that only pinned requests use leads to exact blocks
        only, and pinned requests still share prefixes with each other. What an encoder makes of an image is found by the
        image's identifier, which gets the salt too.
        """
        request.mm_features = [
            replace(feature, identifier=f"{feature.identifier}|{self._pinned_salt}") for feature in request.mm_features
        ]
        request.cache_salt = f"{request.cache_salt or ''}|{self._pinned_salt}"
        request.block_hashes = []
        request.update_block_hashes()

    def _get_local_prefix_cache_hit(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        exact_directive = self._in_force[0] is DirectiveMode.FP16 and not self._fp16_reads_fp8_blocks
        rid, planned = request.request_id, self._planned
        is_exact = planned is not None and request.nestedfp_class == "exact" and rid not in planned.fast
        self._blocks.wanted = exact_directive or is_exact or rid in self._pinned
        return super()._get_local_prefix_cache_hit(request, *args, **kwargs)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        directive, rule, _ = self._in_force
        # A step of decodes alone, which most are, asks for no more than it has.
        capped = directive is DirectiveMode.FP16 and self._cuts_prompts and bool(self._in_prompt)
        self.max_num_scheduled_tokens = (
            self._watch.exact_budget_tokens(rule, self._decodes) if capped else self._budget_tokens
        )
        by_row = directive is DirectiveMode.AUTO and rule.rows_ttft_s is not None and self._can_mix and self._can_plan
        output = self._schedule_by_row(rule, *args, **kwargs) if by_row else super().schedule(*args, **kwargs)
        planned, self._planned = self._planned, None
        output.nestedfp_exact = frozenset()
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            output.nestedfp_mode = self._totals.last_mode or Mode.FP16
            return output
        tokens = output.total_num_scheduled_tokens
        prompts = [self._in_prompt[rid] for rid in self._in_prompt.keys() & scheduled.keys()]
        for request in prompts:
            self._watch.computes(request, min(request.num_computed_tokens, request.num_prompt_tokens))
        if planned is None:
            exact, reason = self._of_one_precision(scheduled, tokens, directive, rule, with_prompts=bool(prompts))
        else:
            exact, reason = self._of_planned(planned, scheduled), planned.reason
        all_exact = len(exact) == len(scheduled)
        exact_rows = tokens if all_exact else sum(scheduled[rid] for rid in exact)
        for rid in () if all_exact else (self._exact.keys() & scheduled.keys()) - exact:
            request = self._exact.pop(rid)
            request.nestedfp_class = "fast"
            # vLLM has advanced num_computed_tokens past this step already, and past drafts that a step in flight may reject.
            start = max(0, request.num_computed_tokens - scheduled[rid] - self.num_spec_tokens)
            self._blocks.no_longer_exact(request, exact_tokens=start, written_from=start)
        for request in prompts:
            rid = request.request_id
            self._count_prompt(request, Mode.FP16 if rid in exact else Mode.FP8, scheduled[rid])
        output.nestedfp_with_prompts = bool(prompts)
        output.nestedfp_first_tokens = [r.request_id for r in prompts if r.request_id not in self._in_prompt]
        output.nestedfp_resting = () if planned is None else planned.resting
        rows = output.nestedfp_rows = exact_rows, tokens - exact_rows
        self._watch.filled(rows, output.nestedfp_first_tokens, with_prompts=bool(prompts))
        self._totals.step(*rows, reason)
        output.nestedfp_mode = Mode.FP8 if rows[1] else Mode.FP16
        output.nestedfp_exact = frozenset(exact) if all(rows) else frozenset()
        output.nestedfp_scheduled_s = steady_s()
        return output

    @property
    def _can_mix(self) -> bool:
        """Whether a step may hold rows of both precisions."""
        return self._watch.times.are_by_row and not self._fp16_only

    @property
    def _can_plan(self) -> bool:
        """Whether a step may hold any part of any prompt."""
        return self._cuts_prompts and not self.need_mamba_block_aligned_split

    def _of_one_precision(
        self, scheduled: dict[str, int], tokens: int, directive: DirectiveMode, rule: StepRule, *, with_prompts: bool
    ) -> tuple[Collection[str], str]:
        """Return the requests of a filled step whose rows run FP16, all or none but the pinned ones, and why."""
        pinned = self._pinned.keys() & scheduled.keys()
        watched = directive is DirectiveMode.AUTO and rule.has_deadlines
        signals = StepSignals(
            scheduled_tokens=tokens,
            oldest_wait_s=0.0 if rule.fp8_wait_s is None else self._oldest_wait_s(),
            has_pinned=bool(pinned) and not self._can_mix,
            budget_tokens=self._budget_tokens,
            late=self._late(rule, tokens, with_prompts=with_prompts) if watched else None,
        )
        choice = choose(signals, directive, rule, self._step_costs)
        if choice.mode is Mode.FP16 or self._fp16_only:
            return scheduled.keys(), choice.reason
        if pinned and not self._watch.times.classes_pay(
            rows := sum(scheduled[rid] for rid in pinned), tokens - rows, with_prompts=with_prompts
        ):
            return scheduled.keys(), "pinned"
        return pinned, choice.reason

    def _of_planned(self, planned: RowStep, scheduled: dict[str, int]) -> Collection[str]:
        """Return the requests of a planned step whose rows run FP16."""
        if planned.is_whole:
            return scheduled.keys()
        return {
            rid
            for rid in scheduled
            if rid not in planned.fast and (rid in self._pinned or self.requests[rid].nestedfp_class == "exact")
        }

    def _schedule_by_row(self, rule: StepRule, *args: Any, **kwargs: Any) -> Any:
        """Plan a step and have vLLM fill it so: prompts that are not to begin stay out of its sight meanwhile."""
        skipped = self._queues[1]
        for request in reversed(list(self._in_turn(skipped))):  # no longer blocked: they wait as the others do
            skipped.remove_request(request)
            self.waiting.prepend_request(request)
        waiting = [self.waiting.pop_request() for _ in range(min(len(self.waiting), MOST_PLANNED))]
        behind, self.waiting = self.waiting, type(self.waiting)()
        chosen: list[Request] = []
        try:
            planned = self._planned = self._plan(rule, waiting)
            chosen = [request for request in waiting if planned.most_tokens.get(request.request_id)]
            for request in chosen:
                self.waiting.add_request(request)
            output = super().schedule(*args, **kwargs)
        finally:
            before = {request.request_id for request in waiting}
            left = list(self.waiting)
            kept = {request.request_id for request in left} | before - {request.request_id for request in chosen}
            now_waiting = [request for request in left if request.request_id not in before]  # preempted
            now_waiting += [request for request in waiting if request.request_id in kept]
            self.waiting = behind
            for request in reversed(now_waiting):
                self.waiting.prepend_request(request)
        self._everybody_runs = not output.num_scheduled_tokens
        return output

    def _plan(self, rule: StepRule, waiting: list[Request]) -> RowStep:
        is_prompt = {
            r.request_id: r.request_id in self._in_prompt or left_tokens(r) > 1 + self.num_spec_tokens
            for r in self.running
        }
        decodes = [request for request in self.running if not is_prompt[request.request_id]]
        line = [request for request in self.running if is_prompt[request.request_id] and left_tokens(request) > 0]
        begun = len(line)
        free = self.kv_cache_manager.block_pool.get_num_free_blocks() * self.block_size
        for request in waiting:
            line.append(request)
            free -= request.num_tokens
            if free < 0:  # unless the cache has parts of it
                break
        planned = self._rows.plan(
            rule,
            self._watch.times,
            self._watch.begins_s(),
            decodes,
            line,
            begun=begun,
            places=self.scheduler_config.max_num_seqs - len(self.running) - self.num_waiting_for_streaming_input,
            pinned=self._pinned,
            may_starve=self._may_starve,
        )
        if self._everybody_runs:
            for rid in planned.resting:
                del planned.most_tokens[rid]
            planned = planned._replace(resting=())
        return planned

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """The last word that vLLM asks for on how many tokens of a request a step computes."""
        if self._planned is not None:
            most = self._planned.most_tokens.get(request.request_id)
            if most is None and request.status is not RequestStatus.RUNNING:
                most = UNPLANNED_TOKENS
            if most is not None and (most == 0 or not request.has_encoder_inputs):
                num_new_tokens = min(num_new_tokens, most)
        tokens: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        return tokens

    @property
    def _decodes(self) -> int:
        """Requests that get a token in every step."""
        return len(self.running) - sum(r.status is RequestStatus.RUNNING for r in self._in_prompt.values())

    def _room_stats(self, waiting_tokens: int) -> dict[str, Any]:
        """Return what the engine computes in a second, and what it can take of prompts, where the rule asks for it."""
        directive, rule, _ = self._in_force
        mode = Mode.FP16 if directive is DirectiveMode.FP16 or self._fp16_only else Mode.FP8
        room = self._watch.room(rule, mode, self._decodes, waiting_tokens)
        return {
            "exact_tokens_per_s": self._watch.capacity_tokens_per_s(rule, Mode.FP16),
            "fast_tokens_per_s": self._watch.capacity_tokens_per_s(rule, mode if self._fp16_only else Mode.FP8),
            "room": None if room is None else asdict(room),
        }

    def _late(self, rule: StepRule, tokens: int, *, with_prompts: bool) -> str | None:
        # Of those that wait without a deadline the others do not have to see to it that there is a place.
        idle = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        starving = sum(request.status in idle for request in self._may_starve.values())
        inside = len(self.running) + self._waiting_count() - starving
        return self._watch.late(rule, tokens, inside, self.kv_cache_manager.usage, with_prompts=with_prompts)

    def _count_prompt(self, request: Request, mode: Mode, count: int) -> None:
        rid, start = request.request_id, request.num_computed_tokens - count
        if not request.nestedfp_started:
            request.nestedfp_started = True
            exact = self._blocks.exact_prefix(rid, start)
            request.nestedfp_tokens.begins(start, exact, request.num_prompt_tokens)
            if exact < start:
                self._exact.pop(rid, None)
                request.nestedfp_class = "fast"
                self._blocks.no_longer_exact(request, exact_tokens=exact, written_from=start)
        request.nestedfp_tokens.computed(mode, start, count, request.num_prompt_tokens)
        if start + count >= request.num_prompt_tokens:
            del self._in_prompt[rid]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        mode, exact = scheduler_output.nestedfp_mode, scheduler_output.nestedfp_exact
        self._ended.clear()
        sampled, places = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
        for rid, drafts in scheduler_output.scheduled_spec_decode_tokens.items():
            accepted = max(0, len(sampled[places[rid]]) - 1)  # behind them stands a token of the model's own
            self._totals.verified(Mode.FP16 if rid in exact else mode, len(drafts), accepted)
        results = super().update_from_output(scheduler_output, model_runner_output)
        if scheduler_output.num_scheduled_tokens:
            ended_s = self._clock.ended_s(steady_s(), getattr(model_runner_output, SINCE_LAST_S, None))
            took_s = max(0.0, ended_s - max(scheduler_output.nestedfp_scheduled_s, self._last_end_s))
            if not exact:
                self._totals.took(mode, took_s * 1e3)
            self._watch.ended(
                scheduler_output.nestedfp_rows,
                took_s,
                self._go_on(scheduler_output.nestedfp_first_tokens),
                self._go_on(scheduler_output.nestedfp_resting),
                with_prompts=scheduler_output.nestedfp_with_prompts,
                at_s=ended_s,
            )
            self._last_end_s, self._progress_s = ended_s, steady_s()
        if mode is Mode.FP8 or self._ended or self._may_end:
            for result in results.values():
                for item in result.outputs:
                    self._account_for(item, Mode.FP16 if item.request_id in exact else mode)
        return results

    def _go_on(self, request_ids: Iterable[str]) -> list[Request]:
        """Return those that decode from now on, with a deadline: none that has ended, left or been preempted meanwhile."""
        requests = (self.requests.get(rid) for rid in request_ids if rid not in self._may_starve)
        return [r for r in requests if r is not None and r.status is RequestStatus.RUNNING]

    def _account_for(self, item: Any, mode: Mode) -> None:
        rid = item.request_id
        ended = self._ended.get(rid)
        request = ended or self.requests.get(rid)
        if request is None:
            return
        if mode is Mode.FP8:
            request.nestedfp_tokens.completion_fp8 += len(item.new_token_ids)
        if ended is not None or rid in self._may_end:
            # kv_transfer_params is the one free-form field that vLLM passes through to the front end.
            completion = request.num_output_tokens if ended is None else ended.nestedfp_sampled
            counts = {COUNTS_KEY: request.nestedfp_tokens.counts(completion, rounds_kv=self._rounds_kv)}
            item.kv_transfer_params = {**(item.kv_transfer_params or {}), **counts}

    def _oldest_wait_s(self) -> float:
        """Return how long the first request in line that has a deadline has waited for its turn."""
        first = (request for request in self._first_in_line() if request.request_id not in self._may_starve)
        return max((steady_s() - request.nestedfp_waits_since_s for request in first), default=0.0)

    def _progress_age_s(self) -> float | None:
        """Return for how long there has been work and no step has ended; None: nothing to do."""
        if self.pause_state is not PauseState.UNPAUSED or not (self.running or self._any_waits()):
            return None
        return steady_s() - self._progress_s

    # -- control (called through EngineCore utilities) -----------------------------------------------------------------

    def nestedfp_set_directive(self, directive: dict[str, Any]) -> dict[str, Any]:
        """Put a directive in force from the next step on.

        Where its author has a line of its own (directive_receiver.py), a directive that is older than the one in force changes
        nothing: there are two ways for it to come, and one may overtake the other.

        Args:
            directive: ``{"mode": "fp16" | "fp8" | "auto", "epoch": int, "rule": {...}}``.

        Returns:
            The mode and epoch in force.

        Raises:
            ValueError: for an unknown mode or rule.
        """
        mode, rule = DirectiveMode(directive["mode"]), StepRule(**(directive.get("rule") or {}))
        epoch = int(directive["epoch"])
        with self._directing:
            if not self._epochs_order or epoch >= self._in_force[2]:
                self._in_force = (mode, rule, epoch)
            in_force, _, epoch = self._in_force
        return {"mode": in_force.value, "epoch": epoch}

    def nestedfp_epochs_order(self) -> None:
        """From now on an older epoch changes nothing: all directives have one author."""
        self._epochs_order = True

    def nestedfp_take_step_costs(self, ranks: list[list[list[float]] | None]) -> None:
        """Take what every rank measured at its start; see nestedfp/vllm_plugin/ranks/timing/step_timing.py."""
        self._step_costs = slowest(ranks)
        self._watch.use(self._step_costs)

    def nestedfp_take_fp8_shares(self, ranks: list[float]) -> None:
        """Take what share of its weights has an FP8 mode on every rank; where it is none, no step is called FP8."""
        self._fp8_share = min(ranks)
        self._fp16_only = self._fp16_only or not any(ranks)

    def nestedfp_step_costs(self) -> list[list[float]] | None:
        """Return ``[tokens, fp16_ms, fp8_ms]`` by step size, which ``auto`` goes by; None: not measured."""
        return None if self._step_costs is None else self._step_costs.as_lists()

    def nestedfp_warmed_up(self) -> None:
        """Forget how long the warm-up's steps took, so that nobody takes a cold start for an overload."""
        self._totals.forget_durations()

    def nestedfp_not_begun(self, request_ids: list[str]) -> bool:
        """Return whether these requests are in the queue and no step has computed anything of any of them."""
        requests = [self.requests.get(rid) for rid in request_ids]
        begun = (RequestStatus.RUNNING, RequestStatus.PREEMPTED)
        return all(
            request is not None
            and request.status not in begun
            and not request.is_finished()
            and not request.nestedfp_started
            for request in requests
        )

    def nestedfp_step_seconds(self) -> dict[str, float]:
        """Return how many seconds the steps of each precision have taken since the start."""
        return {mode.value: seconds for mode, seconds in self._totals.seconds.items()}

    def nestedfp_stats(self) -> dict[str, Any]:
        """Return the engine's counters and queue state; totals count from the start of the engine.

        ``waiting``, ``waiting_tokens`` and ``oldest_wait_s`` are of requests that wait for their turn; those that wait for
        a grammar to compile, a remote KV cache or their own client are in ``blocked``. The latter two leave out requests that
        others may overtake for ever. A preempted request has waited since its preemption. ``progress_age_s`` says for how long
        there has been work and no step has ended; None: no work.
        """
        totals, (directive, _, epoch) = self._totals, self._in_force
        waiting = self._turn_waiting()
        waiting_tokens = sum(
            max(0, r.num_tokens - r.num_computed_tokens) for r in waiting if r.request_id not in self._may_starve
        ) + sum(max(0, r.num_prompt_tokens - r.num_computed_tokens) for r in self.running)
        return {
            "mode": (totals.last_mode or Mode.FP16).value,
            "directive": directive.value,
            "epoch": epoch,
            "switches": totals.switches,
            "steps_fp16": totals.steps[Mode.FP16],
            "steps_fp8": totals.steps[Mode.FP8],
            "steps_mixed": totals.steps_mixed,
            "fp8_reasons": dict(totals.fp8_reasons),
            "tokens_fp16": totals.tokens[Mode.FP16],
            "tokens_fp8": totals.tokens[Mode.FP8],
            **(totals.drafts() if self.num_spec_tokens else {}),
            "fp16_only": self._fp16_only,
            "fp8_weight_share": self._fp8_share,
            "kv_cache": "fp8" if self._rounds_kv else "fp16",
            "fp8_pays_from_tokens": None if self._step_costs is None else self._step_costs.fp8_pays_from(),
            "step_ms_fp16": totals.step_ms[Mode.FP16],
            "step_ms_fp8": totals.step_ms[Mode.FP8],
            "waiting": len(waiting),
            "blocked": sum(map(len, self._queues)) - len(waiting),
            "waiting_tokens": waiting_tokens,
            **self._room_stats(waiting_tokens),
            "oldest_wait_s": self._oldest_wait_s(),
            "progress_age_s": self._progress_age_s(),
            "running": len(self.running),
            "kv_usage": float(self.kv_cache_manager.usage),
            "arrivals": self._arrivals,
            "arrived_tokens": self._arrived_tokens,
            "finished": self._finished,
        }


@functools.cache
def _class_over(base: type) -> type:
    return type(f"NestedFP{base.__name__}", (PrecisionMixin, base), {})


def _with_workers_answers(core: Any) -> Any:
    """Return the core's scheduler, which has been given what the workers know.

    The scheduler is made without a way to the workers, and its core has one; they answer at once with what they measured
    before the engine was ready. A plain engine beside it in this process has neither.
    """
    if hasattr(core.scheduler, "nestedfp_take_step_costs") and not getattr(core, "nestedfp_asked_workers", False):
        core.scheduler.nestedfp_take_step_costs(core.model_executor.collective_rpc("nestedfp_step_costs"))
        core.scheduler.nestedfp_take_fp8_shares(core.model_executor.collective_rpc("nestedfp_fp8_share"))
        core.nestedfp_asked_workers = True
    return core.scheduler


def _set_directive(core: Any, directive: dict[str, Any]) -> Any:
    return _with_workers_answers(core).nestedfp_set_directive(directive)


def _open_directive_line(core: Any, path: str) -> None:
    # The workers are asked here and now, in the core's own thread; the line's thread may not.
    scheduler = _with_workers_answers(core)
    directive_receiver.open_line(scheduler.nestedfp_set_directive, path)
    scheduler.nestedfp_epochs_order()


def make_scheduler(*, vllm_config: Any, **kwargs: Any) -> Any:
    """Build the engine's scheduler over the base that vLLM would have taken; vLLM calls this as ``scheduler_cls``."""
    from vllm.v1.engine.core import EngineCore

    workers_answers.install(_with_workers_answers)
    # Utilities are looked up as attributes of the engine core by name; see EngineCoreProc._handle_client_request.
    EngineCore.nestedfp_set_directive = _set_directive
    EngineCore.nestedfp_open_directive_line = _open_directive_line
    EngineCore.nestedfp_step_costs = lambda core: _with_workers_answers(core).nestedfp_step_costs()
    EngineCore.nestedfp_warmed_up = lambda core: core.scheduler.nestedfp_warmed_up()
    EngineCore.nestedfp_stats = lambda core: core.scheduler.nestedfp_stats()
    EngineCore.nestedfp_not_begun = lambda core, request_ids: core.scheduler.nestedfp_not_begun(request_ids)
    EngineCore.nestedfp_step_seconds = lambda core: core.scheduler.nestedfp_step_seconds()
    EngineCore.nestedfp_layers = lambda core: core.model_executor.collective_rpc("nestedfp_layers")[0]
    EngineCore.nestedfp_self_checks = lambda core: core.model_executor.collective_rpc("nestedfp_self_check")
    vllms_own = copy.copy(vllm_config.scheduler_config)
    vllms_own.scheduler_cls = None
    return _class_over(vllms_own.get_scheduler_cls())(vllm_config=vllm_config, **kwargs)
