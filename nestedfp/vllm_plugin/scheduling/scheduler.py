"""The scheduler: chooses the precision of every step and attaches it to the step's SchedulerOutput.

One SchedulerOutput is broadcast to all tensor-parallel ranks, so the ranks cannot disagree. With async scheduling the
outputs are executed in the order in which they were scheduled, so the attached precision is the one that runs.
"""

import copy
import functools
from collections.abc import Collection, Iterable, Iterator
from math import inf
from typing import Any

from vllm.v1.request import Request, RequestStatus

from nestedfp.hooks import around
from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.rows.row_state import MOST_PLANNED, Decode, Prompt, RowState, first_due_s, fullness
from nestedfp.steps.step_rule import StepRule, choose
from nestedfp.vllm_plugin.ranks.timing.step_ends import SINCE_LAST_S
from nestedfp.vllm_plugin.scheduling.deadline_watch import next_due_s, steady_s
from nestedfp.vllm_plugin.scheduling.mixins.control import EngineControl
from nestedfp.vllm_plugin.scheduling.row_steps import RowStep, by_request, left_tokens

UNPLANNED_TOKENS = 64  # of a prompt that became ready while its step was being filled: the next one is planned with it


class PrecisionMixin(EngineControl):
    """What we add to vLLM's scheduler; the base class is chosen by ``make_scheduler``."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._blocks.begin_step()
        directive, rule, _ = self._in_force
        deadlines_s = None if self._fp16_only else rule.deadlines_s(directive)
        # A step of decodes alone, which most are, asks for no more than it has.
        is_cut = directive is DirectiveMode.FP16 and deadlines_s is None and self._cuts_prompts
        capped = is_cut and bool(self._in_prompt)
        self.max_num_scheduled_tokens = (
            self._watch.exact_budget_tokens(rule, self._decode_rows) if capped else self._budget_tokens
        )
        output = (
            super().schedule(*args, **kwargs)
            if deadlines_s is None
            else self._schedule_as_planned(deadlines_s, rule.tpot_grace_tokens, *args, **kwargs)
        )
        self._see_unblocked()
        planned, self._planned = self._planned, None
        output.nestedfp_exact = frozenset()
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            output.nestedfp_mode = self._totals.last_mode or Mode.FP16
            return output
        tokens = output.total_num_scheduled_tokens
        # In their order: a block that one writes is read by those behind it.
        prompts = [self._in_prompt[rid] for rid in scheduled if rid in self._in_prompt]
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
            unsure = max(0, request.num_output_placeholders - scheduled[rid] - 1)
            start = max(0, request.num_computed_tokens - scheduled[rid] - unsure)
            self._blocks.no_longer_exact(request, exact_tokens=start, written_from=start)
        for request in prompts:
            rid = request.request_id
            self._count_prompt(request, Mode.FP16 if rid in exact else Mode.FP8, scheduled[rid])
        output.nestedfp_with_prompts = bool(prompts)
        output.nestedfp_first_tokens = [r.request_id for r in prompts if r.request_id not in self._in_prompt]
        rows = output.nestedfp_rows = exact_rows, tokens - exact_rows
        self._watch.filled(rows, with_prompts=bool(prompts))
        self._totals.step(*rows, reason)
        output.nestedfp_mode = Mode.FP8 if rows[1] else Mode.FP16
        output.nestedfp_exact = frozenset(exact) if all(rows) else frozenset()
        output.nestedfp_scheduled_s = steady_s()
        return output

    @property
    def _can_mix(self) -> bool:
        """Whether a step may hold rows of both precisions."""
        return self._watch.times.are_by_row and not self._fp16_only

    def _of_one_precision(
        self, scheduled: dict[str, int], tokens: int, directive: DirectiveMode, rule: StepRule, *, with_prompts: bool
    ) -> tuple[Collection[str], str]:
        """Return the requests of a filled step whose rows run FP16, all or none but the pinned ones, and why."""
        pinned = self._pinned.keys() & scheduled.keys()
        has_pinned = bool(pinned) and not self._can_mix
        mode, reason = choose(tokens, self._budget_tokens, directive, rule, self._step_costs, has_pinned=has_pinned)
        if mode is Mode.FP16 or self._fp16_only:
            return scheduled.keys(), reason
        if pinned and not self._watch.times.classes_pay(
            rows := sum(scheduled[rid] for rid in pinned), tokens - rows, with_prompts=with_prompts
        ):
            return scheduled.keys(), "pinned"
        return pinned, reason

    def _of_planned(self, planned: RowStep, scheduled: dict[str, int]) -> Collection[str]:
        """Return the requests of a planned step whose rows run FP16."""
        if planned.is_whole:
            return scheduled.keys()
        exact = {
            rid
            for rid in scheduled
            if rid not in planned.fast and (rid in self._pinned or self.requests[rid].nestedfp_class == "exact")
        }
        # vLLM may have left out, or taken, another one than planned.
        return scheduled.keys() if exact and not self._can_mix else exact

    def _schedule_as_planned(self, deadlines_s: tuple[float, float], grace: int, *args: Any, **kwargs: Any) -> Any:
        """Plan a step and have vLLM fill it so: prompts that are not to begin stay out of its sight meanwhile."""
        skipped = self._passed_over
        for request in reversed(list(self._in_turn(skipped))):  # no longer blocked: they wait as the others do
            skipped.remove_request(request)
            self.waiting.prepend_request(request)
        waiting = [self.waiting.pop_request() for _ in range(min(len(self.waiting), MOST_PLANNED))]
        behind, self.waiting = self.waiting, type(self.waiting)()
        chosen: list[Request] = []
        try:
            ready = list(self._with_adapter_slots(self._in_turn(waiting)))
            planned = self._planned = self._plan(deadlines_s, grace, ready)
            # Blocked ones, which vLLM keeps here from 0.31 on, are its to look at.
            begin = {request.request_id for request in ready if planned.most_tokens.get(request.request_id)}
            chosen = [r for r in waiting if r.request_id in begin or not self._waits_for_turn(r)]
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
        self._everybody_runs = bool(planned.resting) and not output.num_scheduled_tokens
        return output

    def _with_adapter_slots(self, waiting: Iterable[Request]) -> Iterator[Request]:
        """Yield the requests whose LoRA adapter has a slot beside those of all that run.

        vLLM counts the adapters of a step, which is the same where all that run are in it; here some may rest.
        """
        if self.lora_config is None:
            yield from waiting
            return
        taken = {each.lora_request.lora_int_id for each in self.running if each.lora_request}
        for request in waiting:
            adapter = request.lora_request and request.lora_request.lora_int_id
            if adapter in {None, *taken} or len(taken) < self.lora_config.max_loras:
                taken |= {adapter} - {None}
                yield request

    def _plan(self, deadlines_s: tuple[float, float], grace: int, waiting: list[Request]) -> RowStep:
        is_prompt = {
            r.request_id: r.request_id in self._in_prompt or left_tokens(r) > 1 + self.num_spec_tokens
            for r in self.running
        }
        # A request that is in a step of a pipeline on its way is not in the next one.
        step = self.current_step + 1
        running = [r for r in self.running if left_tokens(r) > 0 and r.next_decode_eligible_step <= step]
        decodes = [request for request in running if not is_prompt[request.request_id]]
        line = [request for request in running if is_prompt[request.request_id]]
        begun = len(line)
        free = self.kv_cache_manager.block_pool.get_num_free_blocks() * self.block_size
        for request in waiting:
            line.append(request)
            free -= request.num_tokens
            if free < 0:  # unless the cache has parts of it
                break
        # Of those that wait without a deadline the others do not have to see to it that there is a place.
        idle = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        starving = sum(request.status in idle for request in self._may_starve.values())
        inside = len(self.requests) - len(self._blocked) - starving
        exact = [request for request in decodes if request.nestedfp_class == "exact"]
        fast = [request for request in decodes if request.nestedfp_class != "exact"]
        (ttft_s, tpot_s), now_s = deadlines_s, self._watch.begins_s()
        state = RowState(
            now_s,
            [self._as_decode(request, tpot_s, grace, now_s) for request in exact],
            [self._as_decode(request, tpot_s, grace, now_s) for request in fast],
            [self._as_prompt(request, ttft_s, now_s, has_begun=place < begun) for place, request in enumerate(line)],
            self.scheduler_config.max_num_seqs - len(self.running),
            self._budget_tokens,
            tpot_s,
            fullness(inside, self.scheduler_config.max_num_seqs, self.kv_cache_manager.usage),
            max(map(left_tokens, decodes), default=1),
        )
        planned = by_request(self._rows.plan(state, self._watch.times), exact, line)
        if self._everybody_runs:
            for rid in planned.resting:
                del planned.most_tokens[rid]
            planned = planned._replace(resting=())
        return planned

    def _as_decode(self, request: Request, tpot_s: float, grace: int, now_s: float) -> Decode:
        due_s = inf if request.request_id in self._may_starve else next_due_s(request, tpot_s, grace, now_s)
        return Decode(due_s, request.request_id in self._pinned)

    def _as_prompt(self, request: Request, ttft_s: float, now_s: float, *, has_begun: bool) -> Prompt:
        rid = request.request_id
        is_due = rid not in self._may_starve and request.nestedfp_first_token_s is None
        due_s = first_due_s(request.nestedfp_waits_since_s, ttft_s, now_s) if is_due else inf
        is_exact = request.nestedfp_class == "exact" and due_s > -inf
        return Prompt(left_tokens(request), due_s, is_exact, rid in self._pinned, has_begun, self._cuts(request))

    def _cuts(self, request: Request) -> bool:
        """Whether a step may compute any part of a request's prompt."""
        return self._cuts_prompts and not self.need_mamba_block_aligned_split and not request.has_encoder_inputs

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """The last word that vLLM asks for on how many tokens of a request a step computes."""
        if self._planned is not None:
            most = self._planned.most_tokens.get(request.request_id)
            if most is None and request.status is not RequestStatus.RUNNING:
                fits = self._can_mix or self._planned.is_whole
                most = UNPLANNED_TOKENS if fits and any(self._with_adapter_slots([request])) else 0
            # A last token that vLLM has padded to as many rows as a decode with drafts has stays so.
            is_padded = num_computed_tokens + num_new_tokens > request.num_tokens
            if most is not None and (most == 0 or (self._cuts(request) and not is_padded)):
                num_new_tokens = min(num_new_tokens, most)
        tokens: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        return tokens

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
                with_prompts=scheduler_output.nestedfp_with_prompts,
                at_s=ended_s,
            )
            self._last_end_s, self._progress_s = ended_s, steady_s()
        if mode is Mode.FP8 or self._ended or self._may_end:
            for result in results.values():
                for item in result.outputs:
                    self._account_for(item, Mode.FP16 if item.request_id in exact else mode)
        return results


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


def _asks_workers_first(add_request: Any, core: Any, *args: Any, **kwargs: Any) -> None:
    """An SLO may be in force without a directive, so a core asks its workers before its first request."""
    _with_workers_answers(core)
    add_request(core, *args, **kwargs)


def make_scheduler(*, vllm_config: Any, **kwargs: Any) -> Any:
    """Build the engine's scheduler over the base that vLLM would have taken; vLLM calls this as ``scheduler_cls``."""
    from vllm.v1.engine.core import EngineCore

    around.put(EngineCore, "add_request", _asks_workers_first)
    # Utilities are looked up as attributes of the engine core by name; see EngineCoreProc._handle_client_request.
    EngineCore.nestedfp_set_directive = _set_directive
    EngineCore.nestedfp_step_costs = lambda core: _with_workers_answers(core).nestedfp_step_costs()
    EngineCore.nestedfp_warmed_up = lambda core: core.scheduler.nestedfp_warmed_up()
    EngineCore.nestedfp_stats = lambda core: core.scheduler.nestedfp_stats()
    EngineCore.nestedfp_layers = lambda core: core.model_executor.collective_rpc("nestedfp_layers")[0]
    EngineCore.nestedfp_self_checks = lambda core: core.model_executor.collective_rpc("nestedfp_self_check")
    vllms_own = copy.copy(vllm_config.scheduler_config)
    vllms_own.scheduler_cls = None
    return _class_over(vllms_own.get_scheduler_cls())(vllm_config=vllm_config, **kwargs)
