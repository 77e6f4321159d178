"""Keeps the times of an engine's steps and first tokens for its scheduler: step_watch.py in terms of vLLM's requests.

Times are those of ``steady_s``.
"""

import time
from collections.abc import Callable
from math import inf
from typing import Any

from nestedfp.steps.step_watch import StepWatch

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
    """

    def __init__(self, budget_tokens: int) -> None:
        super().__init__(budget_tokens)
        self._in_flight: list[float] = []  # predicted seconds of the steps that have been filled and not ended
        self._ended_s = 0.0
        self._first_priority = inf

    def waits(self, request: Any, priority: int, line_tokens: Callable[[], int]) -> None:
        """A request has come, or waits for nothing but its turn from now on.

        Args:
            request: vLLM's.
            priority: lower ones go first.
            line_tokens: counts the prompt tokens that are still to be computed, its own among them.
        """
        self._first_priority = min(self._first_priority, priority)
        # One of less priority may be late because others overtake it.
        may_have = priority <= self._first_priority and self.margin.is_asked
        request.nestedfp_has_room = may_have and self.margin.takes(line_tokens())

    @property
    def ends_s(self) -> float:
        """When the last of them ends, as predicted; where there are none, when the last one ended."""
        return self._ended_s + sum(self._in_flight)

    def begins_s(self) -> float:
        """When a step begins that is filled now: with asynchronous scheduling the one before still runs."""
        return max(steady_s(), self.ends_s)

    def filled(self, rows: tuple[int, int], *, with_prompts: bool) -> None:
        """A step of so many rows in FP16 and in FP8 is on its way."""
        self._in_flight.append(self.times.of_rows_s(*rows, with_prompts=with_prompts))

    def ended(
        self, rows: tuple[int, int], took_s: float, first_tokens: list[Any], *, with_prompts: bool, at_s: float
    ) -> None:
        """A step has ended; requests have had their first token and go on."""
        if self._in_flight:
            self._in_flight.pop(0)
        self._ended_s = at_s
        self.times.rows_took(*rows, took_s, with_prompts=with_prompts)
        for request in first_tokens:
            if request.nestedfp_first_token_s is None:
                request.nestedfp_first_token_s = self._ended_s
                if request.nestedfp_has_room:
                    self.margin.first_token(at_s - request.nestedfp_waits_since_s)


def next_due_s(request: Any, tpot_s: float, grace: int, now_s: float) -> float:
    """Return when the next token of a request that decodes is due.

    Args:
        request: vLLM's.
        tpot_s: deadline of the mean time per output token.
        grace: tokens that an answer is trusted to have still to come.
        now_s: its first token's time, where the step that brings it runs still.
    """
    first_s = request.nestedfp_first_token_s
    tokens = max(1, request.num_output_tokens + request.num_output_placeholders)
    return (now_s if first_s is None else float(first_s)) + tpot_s * (tokens + grace)
