"""How many prompt tokens an engine can still take so that their first tokens come in time: what requests are routed by.

Pure and standard library only, as all of this folder, so that the engine's scheduler and the simulator run the same code.
An engine computes prompts in steps of a bounded time, each beside one token for every request that decodes. So prompts are
computed at a rate, and the time that is left of the deadline, less the step that runs and one of their own, holds so many.
"""

from dataclasses import dataclass

from nestedfp.modes import Mode

USUAL_MARGIN = 0.1  # of the time that first tokens may take
MOST_MARGIN = 0.5
LATE_SHARE = 0.005  # of the prompts taken with room, whose first tokens may be late
LEARN = 0.05  # of that time, for each late one


@dataclass(frozen=True, slots=True)
class PromptRoom:
    """What an engine can take.

    Attributes:
        tokens: of prompts that come now; below zero, as many are late already.
        full_tokens: the same of an engine without a line.
        tokens_per_s: how fast the room grows back.
        load_share: rows computed in a second over those that exact steps compute; above 1 only with fast steps.
        pinned_share: the same of pinned requests' rows.
    """

    tokens: int
    full_tokens: int
    tokens_per_s: float
    load_share: float = 0.0
    pinned_share: float = 0.0


class RoomMargin:
    """What an engine keeps free beside the times it predicts, learnt from the first tokens of prompts that it had room for.

    The margin rises with each late one and falls a little with each other, so that ``LATE_SHARE`` of them are late
    (Robbins and Monro, "A stochastic approximation method", 1951). Only exact engines learn: the others do not take by room.
    """

    def __init__(self) -> None:
        self._learnt = USUAL_MARGIN
        self._ttft_s = 0.0  # 0: no exact room was asked for
        self._most_tokens = 0

    def within(self, mode: Mode, ttft_s: float) -> float:
        """Return the seconds that room is counted for, where first tokens may take ``ttft_s``."""
        return ttft_s * (1 - (self._learnt if mode is Mode.FP16 else USUAL_MARGIN))

    def said(self, mode: Mode, ttft_s: float, room: PromptRoom) -> None:
        """The engine has said that it has this room; it learns until it is directed to another precision."""
        self._ttft_s = ttft_s if mode is Mode.FP16 else 0.0
        self._most_tokens = room.full_tokens

    @property
    def is_asked(self) -> bool:
        """Whether requests are taken by room."""
        return self._ttft_s > 0

    def takes(self, line_tokens: int) -> bool:
        """Whether there is room for a prompt that comes now, with which so many tokens are in line."""
        return self.is_asked and line_tokens <= self._most_tokens

    def first_token(self, took_s: float) -> None:
        """The first token of a prompt that there was room for has come after so many seconds."""
        if self._ttft_s:
            change = LEARN if took_s > self._ttft_s else -LEARN * LATE_SHARE / (1 - LATE_SHARE)
            self._learnt = min(MOST_MARGIN, max(0.0, self._learnt + change))
