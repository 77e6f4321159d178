"""Keeps the deadlines of an engine's requests for its scheduler: nestedfp/steps/step_slack.py in terms of vLLM's requests.

Times are those of ``steady_s``.
"""

import time
from math import inf
from typing import Any

from nestedfp.modes import Mode
from nestedfp.steps.prompt_room import PromptRoom, RoomMargin, capacity_tokens_per_s, prompt_room
from nestedfp.steps.step_costs import StepCosts
from nestedfp.steps.step_fill import FillWatch
from nestedfp.steps.step_rule import StepRule
from nestedfp.steps.step_slack import StepSlack, StepTimes

LONGEST_WAY_S = 1.0  # of a request to the engine; a wall clock that steps meanwhile makes it look longer


def steady_s() -> float:
    """Seconds of the one clock that the scheduler decides by: nobody sets it, and nobody slews it.

    One that runs faster for a while would leave a device's behind (device_clock.py).
    """
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def arrived_s(wall_s: float) -> float:
    """Return when a request arrived, given vLLM's ``arrival_time``, which a front end took from the system's clock."""
    return steady_s() - min(max(0.0, time.time() - wall_s), LONGEST_WAY_S)


class DeadlineWatch:
    """Told of every request and every step; asked whether a step would make somebody late.

    Args:
        budget_tokens: the most tokens of a step.
        max_seqs: the most requests that run at once.

    Attributes:
        times: what steps take.
    """

    def __init__(self, budget_tokens: int, max_seqs: int) -> None:
        self._budget_tokens = budget_tokens
        self._fill = FillWatch(max_seqs)
        self._in_flight: list[float] = []  # predicted seconds of the steps that have been filled and not ended
        self._ended_s = 0.0
        self.times = StepTimes(None)
        self._slack = StepSlack(0.0)
        self._margin = RoomMargin()
        self._first_priority = inf

    def use(self, costs: StepCosts | None) -> None:
        """Go by these measured costs."""
        self.times = StepTimes(costs)
        self._slack.prompts.price(self.times.s_per_prompt_token(self._budget_tokens))

    # -- requests ------------------------------------------------------------------------------------------------------

    def waits(self, request: Any, priority: int = 0) -> None:
        """A request has come, or waits for nothing but its turn from now on; lower priorities go first."""
        since_s = request.nestedfp_waits_since_s
        self._slack.prompts.arrived(request.request_id, since_s, request.num_prompt_tokens, priority)
        self._first_priority = min(self._first_priority, priority)
        # One of less priority may be late because others overtake it.
        has_room = self._margin.takes(self._slack.prompts.tokens)
        request.nestedfp_has_room = has_room and priority <= self._first_priority

    def computes(self, request: Any, tokens: int) -> None:
        """The step being filled brings a prompt to so many tokens."""
        self._slack.prompts.computed(request.request_id, tokens)

    def preempted(self, request: Any) -> None:
        """A request starts over: one in mid-answer has had its first token, the other still waits for it."""
        self._slack.prompts.computed(request.request_id, 0)
        self._slack.decodes.left(request.request_id)

    def left(self, request_id: str) -> None:
        """A request is done or aborted."""
        self._slack.left(request_id)

    # -- room ----------------------------------------------------------------------------------------------------------

    def exact_budget_tokens(self, rule: StepRule, decodes: int) -> int:
        """Return the most tokens of an FP16 step with so many decodes."""
        if rule.exact_step_s is None or not self.times.are_measured:
            return self._budget_tokens
        prompts = self.times.prompt_tokens_within(Mode.FP16, rule.exact_step_s, decodes, self._budget_tokens)
        return min(self._budget_tokens, decodes + prompts)

    def room(self, rule: StepRule, mode: Mode, decodes: int, line_tokens: int) -> PromptRoom | None:
        """Return what the engine can take now; None: the rule does not ask."""
        if rule.room_ttft_s is None or rule.exact_step_s is None or not self.times.are_measured:
            return None
        now_s = steady_s()
        latest_s = self._slack.decodes.latest_end_s(rule.exact_step_s, 1 + rule.tpot_grace_tokens)
        room = prompt_room(
            self.times,
            mode,
            decodes=decodes,
            line_tokens=line_tokens,
            busy_s=max(0.0, self._ended_s + sum(self._in_flight) - now_s) if self._in_flight else 0.0,
            slack_s=latest_s - now_s,
            ttft_s=self._margin.within(mode, rule.room_ttft_s),
            step_s=rule.exact_step_s,
            budget_tokens=self._budget_tokens,
        )
        self._margin.said(mode, rule.room_ttft_s, room)
        return room

    def capacity_tokens_per_s(self, rule: StepRule, mode: Mode) -> float | None:
        """Return what steps of ``exact_step_s`` compute in a second; None: the rule does not ask, or no step was measured."""
        if rule.exact_step_s is None or not self.times.are_measured:
            return None
        return capacity_tokens_per_s(self.times, mode, rule.exact_step_s, self._budget_tokens)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def late(self, rule: StepRule, tokens: int, requests: int, kv_usage: float, *, with_prompts: bool) -> str | None:
        """Say which deadline the step that has just been filled would break in FP16, if any; or that the engine fills up.

        Args:
            rule: with the deadlines.
            tokens: of the step.
            requests: in the engine, those that wait among them.
            kv_usage: share of the KV cache that is taken.
            with_prompts: whether it computes parts of prompts.
        """
        now_s = self.begins_s()
        ends_s = now_s + self.times.predicted_s(Mode.FP16, tokens, with_prompts=with_prompts)
        fill = self._fill.late(rule, self.times, now_s, requests, kv_usage)  # learns from every step
        reserve_s = 0.0 if with_prompts else self._slack.reserve_s(rule, self.times, now_s, tokens, self._budget_tokens)
        late = self._slack.late(rule, now_s, ends_s, len(self._in_flight) + 1, reserve_s)
        if with_prompts:
            self._slack.asked(late)
        return late or fill

    def begins_s(self) -> float:
        """When a step begins that is filled now: with asynchronous scheduling the one before still runs."""
        return max(steady_s(), self._ended_s + sum(self._in_flight))

    def filled(self, rows: tuple[int, int], first_tokens: list[str], *, with_prompts: bool) -> None:
        """A step of so many rows in FP16 and in FP8 is on its way; it brings the first tokens of these requests."""
        self._in_flight.append(self.times.of_rows_s(*rows, with_prompts=with_prompts))
        for request_id in first_tokens:
            self._slack.prompts.left(request_id)

    def ended(
        self,
        rows: tuple[int, int],
        took_s: float,
        first_tokens: list[Any],
        resting: list[Any],
        *,
        with_prompts: bool,
        at_s: float,
    ) -> None:
        """A step has ended; these requests have had a token by the end of their prompt and go on, those have sat it out."""
        if self._in_flight:
            self._in_flight.pop(0)
        self._ended_s = at_s
        self.times.rows_took(*rows, took_s, with_prompts=with_prompts)
        self._slack.decodes.stepped()
        for request in first_tokens:
            if request.nestedfp_first_token_s is None:
                request.nestedfp_first_token_s = self._ended_s
                if request.nestedfp_has_room:
                    self._margin.first_token(at_s - request.nestedfp_waits_since_s)
            first_s = request.nestedfp_first_token_s
            self._slack.decodes.entered(request.request_id, first_s, max(1, request.num_output_tokens))
        for request in resting:
            if (first_s := request.nestedfp_first_token_s) is not None:
                self._slack.decodes.entered(request.request_id, first_s, max(1, request.num_output_tokens))
