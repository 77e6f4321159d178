"""Keeps the deadlines of an engine's requests for its scheduler: nestedfp/steps/deadlines in terms of vLLM's requests.

Times are those of ``steady_s``.
"""

import time
from math import inf
from typing import Any

from nestedfp.steps.deadlines.step_watch import StepWatch

LONGEST_WAY_S = 1.0  # of a request to the engine; a wall clock that steps meanwhile makes it look longer


def steady_s() -> float:
    """Seconds of the one clock that the scheduler decides by: nobody sets it, and nobody slews it.

    One that runs faster for a while would leave a device's behind (device_clock.py).
    """
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def arrived_s(wall_s: float) -> float:
    """Return when a request arrived, given vLLM's ``arrival_time``, which a front end took from the system's clock."""
    return steady_s() - min(max(0.0, time.time() - wall_s), LONGEST_WAY_S)


class DeadlineWatch(StepWatch):
    """A watch of vLLM's requests and of the steps that are on their way.

    Args:
        budget_tokens: the most tokens of a step.
        max_seqs: the most requests that run at once.
    """

    def __init__(self, budget_tokens: int, max_seqs: int) -> None:
        super().__init__(budget_tokens, max_seqs)
        self._in_flight: list[float] = []  # predicted seconds of the steps that have been filled and not ended
        self._ended_s = 0.0
        self._first_priority = inf

    # -- requests ------------------------------------------------------------------------------------------------------

    def waits(self, request: Any, priority: int = 0) -> None:
        """A request has come, or waits for nothing but its turn from now on; lower priorities go first."""
        since_s = request.nestedfp_waits_since_s
        self.slack.prompts.arrived(request.request_id, since_s, request.num_prompt_tokens, priority)
        self._first_priority = min(self._first_priority, priority)
        # One of less priority may be late because others overtake it.
        has_room = self.margin.takes(self.slack.prompts.tokens)
        request.nestedfp_has_room = has_room and priority <= self._first_priority

    def computes(self, request: Any, tokens: int) -> None:
        """The step being filled brings a prompt to so many tokens."""
        self.slack.prompts.computed(request.request_id, tokens)

    def preempted(self, request: Any) -> None:
        """A request starts over: one in mid-answer has had its first token, the other still waits for it."""
        self.slack.prompts.computed(request.request_id, 0)
        self.slack.decodes.left(request.request_id)

    def left(self, request_id: str) -> None:
        """A request is done or aborted."""
        self.slack.left(request_id)

    # -- steps ---------------------------------------------------------------------------------------------------------

    @property
    def steps_in_flight(self) -> int:
        """Steps that have been filled and not ended."""
        return len(self._in_flight)

    @property
    def ends_s(self) -> float:
        """When the last of them ends, as predicted; where there are none, when the last one ended."""
        return self._ended_s + sum(self._in_flight)

    def begins_s(self) -> float:
        """When a step begins that is filled now: with asynchronous scheduling the one before still runs."""
        return max(steady_s(), self.ends_s)

    def filled(self, rows: tuple[int, int], first_tokens: list[str], *, with_prompts: bool) -> None:
        """A step of so many rows in FP16 and in FP8 is on its way; it brings the first tokens of these requests."""
        self._in_flight.append(self.times.of_rows_s(*rows, with_prompts=with_prompts))
        for request_id in first_tokens:
            self.slack.prompts.left(request_id)

    def ended(
        self,
        rows: tuple[int, int],
        took_s: float,
        first_tokens: list[Any],
        of_other_pace: list[Any],
        *,
        with_prompts: bool,
        at_s: float,
    ) -> None:
        """A step has ended; requests have had their first token and go on, others have got none of it or more than one."""
        if self._in_flight:
            self._in_flight.pop(0)
        self._ended_s = at_s
        self.times.rows_took(*rows, took_s, with_prompts=with_prompts)
        self.slack.decodes.stepped()
        for request in first_tokens:
            if request.nestedfp_first_token_s is None:
                request.nestedfp_first_token_s = self._ended_s
                if request.nestedfp_has_room:
                    self.margin.first_token(at_s - request.nestedfp_waits_since_s)
            first_s = request.nestedfp_first_token_s
            self.slack.decodes.entered(request.request_id, first_s, max(1, request.num_output_tokens))
        for request in of_other_pace:
            if (first_s := request.nestedfp_first_token_s) is not None:
                self.slack.decodes.entered(request.request_id, first_s, max(1, request.num_output_tokens))
