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

"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from math import inf

from nestedfp.steps.deadlines.prompt_line import PromptLines
from nestedfp.steps.step_rule import StepRule

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

    def left(self, key: Hashable) -> None:
        """A request is gone from wherever it was."""
        self.prompts.left(key)
        self.decodes.left(key)

    def late(self, rule: StepRule, ends_s: float, steps: int = 1) -> str | None:
        """Say which deadline a step would break, if any; what it computes of prompts has been noted already.

        Args:
            rule: with the deadlines.
            ends_s: when the step would end.
            steps: decode steps until then; more than one where others have been filled and not been counted yet.

        Returns:
            ``"ttft_slack"``: of a request that waits or is in the step; ``"tpot_slack"``: of one that decodes; or None.
        """
        if (ttft_s := rule.ttft_deadline_s) is not None and ends_s > self.prompts.latest_end_s(ttft_s):
            return "ttft_slack"
        # An answer is judged when it is whole: one long step just after its first token is made up for by a few more.
        tpot_s = rule.tpot_deadline_s
        if tpot_s is not None and ends_s > self.decodes.latest_end_s(tpot_s, steps + rule.tpot_grace_tokens):
            return "tpot_slack"
        return None
