"""The line of prompts, planned ahead by the share of a step that each takes. Pure; standard library only."""

from math import ceil
from typing import NamedTuple

from nestedfp.steps.rows.row_state import Prompt


class StepRoom(NamedTuple):
    """Of a step."""

    tokens: int  # of prompts of one class
    takes_s: float


class Ahead:
    """Steps to come, filled to their rooms: the shares of them that the prompts until now take."""

    def __init__(self, now_s: float, *, first: StepRoom, exact: StepRoom, fast: StepRoom, pinned: StepRoom) -> None:
        self._now_s = now_s
        self._first, self._exact, self._fast, self._pinned = first, exact, fast, pinned
        self._steps = self._takes_s = 0.0
        self._missing: float | None = None  # of the first step, beside one of those after it: a share of its room
        self._shorter_s = 0.0

    def comes(self, prompt: Prompt, *, is_exact: bool) -> None:
        """A prompt is the next of the line."""
        if is_exact and self._missing is None:
            share = max(0.0, 1.0 - self._steps)
            self._missing = share * (1.0 - self._first.tokens / max(1, self._exact.tokens))
            self._shorter_s = share * (self._exact.takes_s - self._first.takes_s)
        self._take(prompt.left_tokens, (self._pinned if prompt.is_pinned else self._exact) if is_exact else self._fast)

    def turns(self, prompt: Prompt) -> None:
        """An exact prompt of those until now, which is not pinned, becomes fast."""
        self._take(-prompt.left_tokens, self._exact)
        self._take(prompt.left_tokens, self._fast)

    def _take(self, tokens: int, room: StepRoom) -> None:
        share = tokens / max(1, room.tokens)
        self._steps += share
        self._takes_s += share * room.takes_s

    def end_s(self, *, rounded: bool = True) -> float:
        """When the step ends in which the last one has its first token; or, not rounded, when it is computed."""
        if not self._steps:
            return self._now_s
        steps = self._steps + (self._missing or 0.0)
        steps = max(1, ceil(steps - 1e-9)) if rounded else steps
        return self._now_s + steps * self._takes_s / self._steps - self._shorter_s
