"""The requests of the scheduler: which are exact, which are pinned, and what the front end is told of them."""

import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vllm.v1.request import Request, RequestStatus

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.device_clock import DeviceClock
from nestedfp.steps.rows.row_rule import RowRule
from nestedfp.steps.step_costs import StepCosts
from nestedfp.vllm_plugin.options import PluginOptions, rounds_kv
from nestedfp.vllm_plugin.scheduling.accounting import COUNTS_KEY, EngineTotals, RequestTokens
from nestedfp.vllm_plugin.scheduling.deadline_watch import DeadlineWatch, arrived_s, steady_s
from nestedfp.vllm_plugin.scheduling.exact_blocks import ALL, ExactBlocks
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision, asked_of
from nestedfp.vllm_plugin.scheduling.row_steps import RowStep
from nestedfp.vllm_plugin.scheduling.waiting import WaitingRequests

GRAMMAR_THREADS = 8
LOW_PRIORITY = 10


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


class RequestClasses(WaitingRequests):
    """The state of the scheduler, and what happens to its requests; a class before vLLM's scheduler.

    A step of 256 sequences takes a few milliseconds, so nothing here loops over all sequences of a step unless it has to: the
    sets below name the few that a step changes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = PluginOptions.of(self.vllm_config)
        self._in_force = (*options.directive(), 0)  # mode, rule and epoch
        self._step_costs: StepCosts | None = None
        self._fp16_only = False  # no layer has an FP8 mode
        self._rounds_kv = rounds_kv(self.vllm_config)
        self._fp8_share: float | None = None
        self._budget_tokens = self.max_num_scheduled_tokens  # which a step's precision may lower
        settings = self.scheduler_config
        # Where a prompt, or an image in it, is computed in one step or not at all, a lower budget would keep it waiting for ever.
        self._cuts_prompts = settings.enable_chunked_prefill and not settings.disable_chunked_mm_input
        self._watch = DeadlineWatch(self._budget_tokens)
        self._rows = RowRule()
        self._planned: RowStep | None = None  # while vLLM fills a step that was planned by row
        self._everybody_runs = False  # for one step: the last plan gave nobody anything, for want of blocks
        self._totals = EngineTotals()
        self._arrivals = 0
        self._arrived_tokens = 0
        self._finished = 0
        self._clock = DeviceClock()
        self._last_end_s = 0.0  # of a step
        self._progress_s = steady_s()  # when a step last ended, or work came to an idle engine
        ranks = self.vllm_config.parallel_config.decode_context_parallel_size  # a block's tokens lie on all of them
        specs = [group.kv_cache_spec for group in kwargs["kv_cache_config"].kv_cache_groups]
        self._blocks = ExactBlocks(
            self.kv_cache_manager,
            [spec.block_size * (ranks if getattr(spec, "dcp_sharded", True) else 1) for spec in specs],
        )
        compile_aside(kwargs["structured_output_manager"])
        self._pinned: dict[str, Request] = {}
        self._in_prompt: dict[str, Request] = {}  # parts of their prompt are still to be computed or read
        self._exact: dict[str, Request] = {}  # no FP8 step has written or will be read in their KV entries
        self._may_end: dict[str, Request] = {}  # the front end may end them at any output: they have stop strings
        self._may_starve: dict[str, Request] = {}  # others may overtake them for ever: they have no deadlines
        self._ended: dict[str, Request] = {}  # since the last step's output was taken

    def add_request(self, request: Request) -> None:
        rid = request.request_id
        if not self.running and not self._any_waits():
            self._progress_s = steady_s()
        self._arrivals += 1
        self._arrived_tokens += request.num_prompt_tokens
        request.nestedfp_tokens = RequestTokens()
        # vLLM's queue of priorities goes by this too: a wall clock that is set back would let all later requests overtake.
        request.nestedfp_waits_since_s = request.arrival_time = arrived_s(request.arrival_time)
        request.nestedfp_has_room = False  # until it waits for its turn (deadline_watch.py)
        request.nestedfp_first_token_s = None
        request.nestedfp_asked = asked_of(request.sampling_params or request.pooling_params)
        if request.nestedfp_asked is AskedPrecision.EXACT:
            self._pinned[rid] = request
        if request.sampling_params is not None and request.sampling_params.stop:
            self._may_end[rid] = request
        if self._by_priority and request.priority > 0:
            self._may_starve[rid] = request
        self._starts_over(request)
        super().add_request(request)
        if self._waits_for_turn(request):
            self._waits(request)
        else:
            self._blocked[rid] = request

    def _waits(self, request: Request) -> None:
        """A request waits for its turn, with a deadline unless others may overtake it for ever."""
        if request.request_id not in self._may_starve:
            self._watch.waits(request, request.priority if self._by_priority else 0, self._line_tokens)

    def _line_tokens(self) -> int:
        """Prompt tokens still to be computed, but for those of requests that may wait for ever."""
        line = [request for rid, request in self._in_prompt.items() if rid not in self._may_starve]
        return sum(max(0, request.num_prompt_tokens - request.num_computed_tokens) for request in line)

    def _starts_over(self, request: Request) -> None:
        """No position of the request has been computed or read."""
        request.nestedfp_exact_tokens = ALL
        request.nestedfp_started = False
        request.nestedfp_class = "fast" if request.nestedfp_asked is AskedPrecision.FAST else "exact"
        self._in_prompt[request.request_id] = self._exact[request.request_id] = request

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        request.nestedfp_waits_since_s = steady_s()
        self._starts_over(request)
        super()._preempt_request(request, *args, **kwargs)

    def _see_unblocked(self) -> None:
        """Requests whose grammars are ready wait for their turn from now on, if the step just filled has not taken them."""
        if not (unblocked := self._take_unblocked()):
            return
        now_s = steady_s()
        for request in unblocked:
            request.nestedfp_waits_since_s = now_s
            self._waits(request)
        if len(unblocked) == len(self.requests) - len(self._blocked):  # there was nothing else to do
            self._progress_s = now_s

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._finished += 1
        self._ended[request.request_id] = request
        for few in (self._pinned, self._in_prompt, self._exact, self._may_end, self._may_starve, self._blocked):
            few.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)

    def _get_local_prefix_cache_hit(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        rid, planned = request.request_id, self._planned
        exact_directive = planned is None and self._in_force[0] is DirectiveMode.FP16
        is_exact = planned is not None and request.nestedfp_class == "exact" and rid not in planned.fast
        self._blocks.settled = rid in self._pinned
        self._blocks.wanted = exact_directive or is_exact or self._blocks.settled
        return super()._get_local_prefix_cache_hit(request, *args, **kwargs)

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

    def _go_on(self, request_ids: Iterable[str]) -> list[Request]:
        """Return those that decode from now on, with a deadline: none that has ended, left or been preempted meanwhile."""
        requests = (self.requests.get(rid) for rid in request_ids if rid not in self._may_starve)
        return [r for r in requests if r is not None and r.status is RequestStatus.RUNNING]

    def _account_for(self, item: Any, mode: Mode) -> None:
        rid = item.request_id
        request = self._ended.get(rid) or self.requests.get(rid)
        if request is None:
            return
        if mode is Mode.FP8:
            request.nestedfp_tokens.completion_fp8 += len(item.new_token_ids)
        if rid in self._ended or rid in self._may_end:
            # kv_transfer_params is the one free-form field that vLLM passes through to the front end.
            counts = {COUNTS_KEY: request.nestedfp_tokens.counts(request.num_output_tokens, rounds_kv=self._rounds_kv)}
            item.kv_transfer_params = {**(item.kv_transfer_params or {}), **counts}
