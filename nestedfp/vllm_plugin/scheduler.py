"""The scheduler: chooses the precision of every step and attaches it to the step's SchedulerOutput.

One SchedulerOutput is broadcast to all tensor-parallel ranks, so the ranks cannot disagree. With async scheduling the
outputs are executed in the order in which they were scheduled, so the attached precision is the one that runs.
"""

import functools
import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.step_costs import StepCosts, slowest
from nestedfp.step_rule import StepRule, StepSignals, choose
from nestedfp.vllm_plugin.accounting import COUNTS_KEY, EngineTotals, RequestTokens
from nestedfp.vllm_plugin.options import PluginOptions
from nestedfp.vllm_plugin.pin import parse_pin

PINNED_SALT = "nestedfp-fp16"


class PrecisionMixin:
    """What we add to vLLM's scheduler; the base class is chosen by ``make_scheduler``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._directive = DirectiveMode.FP16  # until somebody says otherwise: full quality
        self._rule = StepRule()
        self._step_costs: StepCosts | None = None
        self._fp16_only = PluginOptions.of(self.vllm_config).fp16_only
        self._epoch = 0
        self._totals = EngineTotals()
        self._arrivals = 0
        self._arrived_tokens = 0
        self._finished = 0
        self._last_update_s = 0.0

    # -- requests ------------------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self._arrivals += 1
            self._arrived_tokens += request.num_prompt_tokens
            request.nestedfp_tokens = RequestTokens()
            request.nestedfp_pinned = _is_pinned(request)
            if request.nestedfp_pinned:
                _keep_off_shared_blocks(request)
        super().add_request(request)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        request.nestedfp_tokens.preempted()
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._finished += 1
        return super()._free_request(request, *args, **kwargs)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            output.nestedfp_mode = self._totals.last_mode or Mode.FP16
            return output
        signals = StepSignals(
            scheduled_tokens=output.total_num_scheduled_tokens,
            oldest_wait_s=self._oldest_wait_s(),
            has_pinned=any(self.requests[rid].nestedfp_pinned for rid in scheduled),
            budget_tokens=self.max_num_scheduled_tokens,
        )
        choice = choose(signals, self._directive, self._rule, self._step_costs)
        mode = Mode.FP16 if self._fp16_only else choice.mode
        for rid, count in scheduled.items():
            request = self.requests[rid]
            # vLLM has advanced num_computed_tokens past this step already.
            start = request.num_computed_tokens - count
            request.nestedfp_tokens.computed(mode, start, count, request.num_prompt_tokens)
        self._totals.step(mode, output.total_num_scheduled_tokens)
        output.nestedfp_mode = mode
        output.nestedfp_scheduled_s = time.monotonic()
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> dict[int, Any]:
        mode = scheduler_output.nestedfp_mode
        requests = {rid: self.requests.get(rid) for rid in scheduler_output.num_scheduled_tokens}
        results = super().update_from_output(scheduler_output, model_runner_output)
        if requests:
            now_s = time.monotonic()
            began_s = max(scheduler_output.nestedfp_scheduled_s, self._last_update_s)
            self._totals.took(mode, (now_s - began_s) * 1e3)
            self._last_update_s = now_s
        for result in results.values():
            for item in result.outputs:
                request = requests.get(item.request_id)
                if request is None:
                    continue
                request.nestedfp_tokens.sampled(mode, len(item.new_token_ids))
                # The front end may end a request with stop strings at any of its outputs.
                if item.finish_reason is not None or (request.sampling_params and request.sampling_params.stop):
                    # kv_transfer_params is the one free-form field that vLLM passes through to the front end.
                    counts = {COUNTS_KEY: request.nestedfp_tokens.counts(request.num_prompt_tokens)}
                    item.kv_transfer_params = {**(item.kv_transfer_params or {}), **counts}
        return results

    def _oldest_wait_s(self) -> float:
        arrivals = [queue.peek_request().arrival_time for queue in (self.waiting, self.skipped_waiting) if queue]
        return max(0.0, time.time() - min(arrivals)) if arrivals else 0.0

    # -- control (called through EngineCore utilities) -----------------------------------------------------------------

    def nestedfp_set_directive(self, directive: dict[str, Any]) -> dict[str, Any]:
        """Put a directive in force from the next step on.

        Args:
            directive: ``{"mode": "fp16" | "fp8" | "auto", "epoch": int, "rule": {...}}``.

        Raises:
            ValueError: for an unknown mode or rule.
        """
        mode, rule = DirectiveMode(directive["mode"]), StepRule(**(directive.get("rule") or {}))
        self._directive, self._rule, self._epoch = mode, rule, int(directive["epoch"])
        return {"mode": mode.value, "epoch": self._epoch}

    def nestedfp_take_step_costs(self, ranks: list[list[list[float]] | None]) -> None:
        """Take what every rank measured at its start; see nestedfp/vllm_plugin/step_timing.py."""
        self._step_costs = slowest(ranks)

    def nestedfp_step_costs(self) -> list[list[float]] | None:
        """Return ``[tokens, fp16_ms, fp8_ms]`` by step size, which ``auto`` goes by; None: not measured."""
        return None if self._step_costs is None else self._step_costs.as_lists()

    def nestedfp_warmed_up(self) -> None:
        """Forget how long the warm-up's steps took, so that nobody takes a cold start for an overload."""
        self._totals.forget_durations()

    def nestedfp_stats(self) -> dict[str, Any]:
        """Return the engine's counters and queue state; totals count from the start of the engine."""
        totals = self._totals
        waiting = [*self.waiting, *self.skipped_waiting]
        return {
            "mode": (totals.last_mode or Mode.FP16).value,
            "directive": self._directive.value,
            "epoch": self._epoch,
            "switches": totals.switches,
            "steps_fp16": totals.steps[Mode.FP16],
            "steps_fp8": totals.steps[Mode.FP8],
            "tokens_fp16": totals.tokens[Mode.FP16],
            "tokens_fp8": totals.tokens[Mode.FP8],
            "fp16_only": self._fp16_only,
            "fp8_pays_from_tokens": None if self._step_costs is None else self._step_costs.fp8_pays_from(),
            "step_ms_fp16": totals.step_ms[Mode.FP16],
            "step_ms_fp8": totals.step_ms[Mode.FP8],
            "waiting": len(waiting),
            "waiting_tokens": sum(max(0, r.num_tokens - r.num_computed_tokens) for r in waiting)
            + sum(max(0, r.num_prompt_tokens - r.num_computed_tokens) for r in self.running),
            "oldest_wait_s": self._oldest_wait_s(),
            "running": len(self.running),
            "kv_usage": float(self.kv_cache_manager.usage),
            "arrivals": self._arrivals,
            "arrived_tokens": self._arrived_tokens,
            "finished": self._finished,
        }


def _is_pinned(request: Request) -> bool:
    params = request.sampling_params
    return params is not None and parse_pin(params.extra_args)


def _keep_off_shared_blocks(request: Request) -> None:
    """Give a pinned request a prefix cache of its own kind.

    A cached block may have been written by an FP8 step. Blocks are found by a hash that starts from the request's
    salt, and every step of a pinned request runs FP16, so a salt that only pinned requests use leads to exact blocks
    only, and pinned requests still share prefixes with each other.
    """
    request.cache_salt = f"{request.cache_salt}|{PINNED_SALT}" if request.cache_salt else PINNED_SALT
    request.block_hashes = []
    request.update_block_hashes()


@functools.cache
def _class_over(base: type) -> type:
    return type(f"NestedFP{base.__name__}", (PrecisionMixin, base), {})


def _with_step_costs(core: Any) -> Any:
    """Return the core's scheduler, which has been given the workers' measurements.

    The scheduler is made without a way to the workers, and its core has one; they answer at once with what they measured
    before the engine was ready.
    """
    if not getattr(core, "nestedfp_asked_workers", False):
        core.scheduler.nestedfp_take_step_costs(core.model_executor.collective_rpc("nestedfp_step_costs"))
        core.nestedfp_asked_workers = True
    return core.scheduler


def _set_directive(core: Any, directive: dict[str, Any]) -> Any:
    return _with_step_costs(core).nestedfp_set_directive(directive)


def make_scheduler(*, vllm_config: Any, **kwargs: Any) -> Any:
    """Build the engine's scheduler over the base that vLLM would have taken; vLLM calls this as ``scheduler_cls``."""
    from vllm.v1.engine.core import EngineCore

    # Utilities are looked up as attributes of the engine core by name; see EngineCoreProc._handle_client_request.
    EngineCore.nestedfp_set_directive = _set_directive
    EngineCore.nestedfp_step_costs = lambda core: _with_step_costs(core).nestedfp_step_costs()
    EngineCore.nestedfp_warmed_up = lambda core: core.scheduler.nestedfp_warmed_up()
    EngineCore.nestedfp_stats = lambda core: core.scheduler.nestedfp_stats()
    base = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    return _class_over(base)(vllm_config=vllm_config, **kwargs)
