"""What is left of the deadlines of an engine's requests: how long a step may take before one of them passes its own.

Pure and standard library only, like nestedfp/steps/step_rule.py, so that the engine's scheduler and the simulator run the same
code. Every call costs the same for one request and for a thousand (amortised; a change of the TPOT deadline sorts the
decoding ones anew). Times are seconds of one clock of the caller's.

Two facts make that possible.

* The line of prompts has a constant for each of them (prompt_line.py).
* Every decode step gives every decoding request one token. With ``n`` the steps so far and ``n0`` those when it had its first
  token at ``first_s``, a step that ends at ``t`` gives it a mean TPOT of ``(t - first_s) / (n + 1 - n0)``. That stays below
  the deadline ``d`` while ``t <= first_s - d * n0 + d * (n + 1)``: again a constant of the request and one number of all, so
  the tightest one is the top of a heap.

A third number stands for requests that nobody knows yet: a usual prompt that comes just after a step has begun.

A fourth is kept back. What FP16 takes longer, per token, is least in steps with parts of prompts: there are more tokens in them.
But steps of decodes alone are the most, and would use up what the TPOT deadline leaves before the next prompt is there; so
they must leave enough for some steps with a prompt. Those that come at once, in a burst, find it unspent in either precision.
But only as far as it is needed: an answer that has just begun has no slack, and where prompts are few, keeping back would let
it begin in FP8 for nothing. What says that it is needed are prompts that had to run FP8 for the decodes' sake.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf

from nestedfp.modes import Mode
from nestedfp.steps.deadlines.prompt_line import PromptLines
from nestedfp.steps.step_rule import StepRule
from nestedfp.steps.step_times import StepTimes

RESERVE_S = 1.0  # nothing is kept back for more prompts than come in so long: an idle engine keeps nothing back
SQUEEZED_WEIGHT = 0.05  # of the newest step with prompts in the share of those that would have made a decode late
SPARE = 64  # entries of requests that have left, before the heap of the others is made anew


class DecodeHeap:
    """The decoding requests, by what their mean TPOT leaves."""

    def __init__(self) -> None:
        self._tpot_s = 0.0
        self._count = 0  # decode steps
        self._entered: dict[Hashable, tuple[float, int]] = {}  # (time of the first token, the count then)
        self._heap: list[tuple[float, Hashable]] = []

    def __len__(self) -> int:
        return len(self._entered)

    def entered(self, key: Hashable, first_s: float, tokens: int = 1) -> None:
        """It has ``tokens`` tokens now, the first since ``first_s``, and gets one more in every decode step."""
        at = self._count - (tokens - 1)
        self._entered[key] = first_s, at
        heappush(self._heap, (first_s - self._tpot_s * at, key))
        if (
            len(self._heap) > 2 * len(self._entered) + SPARE
        ):  # most policies never ask, which is when the top is cleared
            self._sort(self._tpot_s)

    def left(self, key: Hashable) -> None:
        """It is done, preempted or aborted. Unknown ones do no harm."""
        self._entered.pop(key, None)

    def stepped(self, steps: int = 1) -> None:
        """Every decoding request has got so many tokens."""
        self._count += steps

    def latest_end_s(self, tpot_s: float, steps: int = 1) -> float:
        """Until when the next ``steps`` steps must have ended so that no mean TPOT is above ``tpot_s`` then.

        Returns:
            A time, perhaps one that has passed; infinity where nothing decodes.
        """
        if tpot_s != self._tpot_s:
            self._sort(tpot_s)
        while self._heap and not self._is_of_now(*self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] + tpot_s * (self._count + steps) if self._heap else inf

    def _sort(self, tpot_s: float) -> None:
        self._tpot_s = tpot_s
        self._heap = [(first_s - tpot_s * at, key) for key, (first_s, at) in self._entered.items()]
        heapify(self._heap)

    def _is_of_now(self, value: float, key: Hashable) -> bool:
        """Whether this is what the request entered with last: it may have left, and come again."""
        entered = self._entered.get(key)
        return entered is not None and entered[0] - self._tpot_s * entered[1] == value


class StepSlack:
    """Both together: asked for every step, told of every request.

    Args:
        s_per_token: what a prompt token costs in full FP8 steps.
    """

    def __init__(self, s_per_token: float) -> None:
        self.prompts = PromptLines(s_per_token)
        self.decodes = DecodeHeap()
        self._squeezed = 0.0  # share of the last steps with prompts

    def asked(self, late: str | None) -> None:
        """Learn what ``late`` said of a step with parts of prompts."""
        self._squeezed += SQUEEZED_WEIGHT * ((late == "tpot_slack") - self._squeezed)

    def left(self, key: Hashable) -> None:
        """A request is gone from wherever it was."""
        self.prompts.left(key)
        self.decodes.left(key)

    def reserve_s(self, rule: StepRule, times: StepTimes, now_s: float, decodes: int, budget_tokens: int) -> float:
        """What a step of decodes alone must leave of the TPOT deadline, in seconds.

        Args:
            rule: with ``decode_reserve_steps``.
            times: what steps take.
            now_s: when it would begin.
            decodes: tokens of the step.
            budget_tokens: the most tokens of a step.
        """
        if not rule.decode_reserve_steps:
            return 0.0
        tokens = min(decodes + self.prompts.usual_tokens, budget_tokens)
        share = rule.decode_reserve_share
        needed = min(1.0, self._squeezed / share) if share else 1.0
        steps = needed * min(rule.decode_reserve_steps, self.prompts.coming(now_s, RESERVE_S))
        return steps * times.predicted_s(Mode.FP16, tokens, with_prompts=True)

    def late(self, rule: StepRule, now_s: float, ends_s: float, steps: int = 1, reserve_s: float = 0.0) -> str | None:
        """Say which deadline a step would break, if any; what it computes of prompts has been noted already.

        Args:
            rule: with the deadlines.
            now_s: when the step would begin.
            ends_s: when it would end.
            steps: decode steps until then; more than one where others have been filled and not been counted yet.
            reserve_s: what it must leave of the TPOT deadline: ``reserve_s`` if it is one of decodes alone.

        Returns:
            ``"ttft_slack"``: of a request that waits or is in the step; ``"next_slack"``: of the next one to come;
            ``"tpot_slack"``: of one that decodes; or None.
        """
        if (ttft_s := rule.ttft_deadline_s) is not None:
            if ends_s > self.prompts.latest_end_s(now_s, ttft_s):
                return "ttft_slack"
            if self.prompts.wait_of_next_s(now_s, ends_s) > ttft_s:
                return "next_slack"
        # An answer is judged when it is whole: one long step just after its first token is made up for by a few more.
        tpot_s = rule.tpot_deadline_s
        if tpot_s is not None and ends_s + reserve_s > self.decodes.latest_end_s(
            tpot_s, steps + rule.tpot_grace_tokens
        ):
            return "tpot_slack"
        return None
