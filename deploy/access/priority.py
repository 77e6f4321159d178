"""Whose turn comes first where there is not room for all: three classes, and vLLM's number. Pure.

A request says a number as vLLM knows it, in the body (``priority``) or in the header ``X-Vllm-Priority``: the lower, the earlier;
0 and nothing are the same. Its class decides how full a replica may be before it is refused (``admission.py``).
"""

import enum
from typing import NamedTuple

from deploy.front.replies import Refused


class Priority(enum.StrEnum):
    """Classes, the last of which is refused first."""

    HIGH = "high"
    NORMAL = "normal"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """Place in the order: 0 comes first."""
        return list(Priority).index(self)


# What the engine hears of a request that gave no number of its own.
ENGINE_PRIORITY = {Priority.HIGH: -1, Priority.NORMAL: 0, Priority.BATCH: 1}


class Ranked(NamedTuple):
    """A request's class, and its number among the engine's requests: the lower, the earlier."""

    priority: Priority
    engine: int


def ranked(stated: int, own: Priority | None, *, anything: bool, pinned: bool) -> Ranked:
    """Return the class of a request.

    Args:
        stated: the request's own number; 0: none.
        own: class of its key; None: the key, if there is one, says nothing.
        anything: the request may ask for any class: no keys are configured.
        pinned: to exact FP16; such requests are ``high`` where neither they nor their keys say otherwise.

    Raises:
        Refused: 403 for a number that asks for more than the key has.
    """
    usual = own or (Priority.HIGH if pinned else Priority.NORMAL)
    if stated == 0:
        return Ranked(usual, ENGINE_PRIORITY[usual])
    asked = Priority.HIGH if stated < 0 else Priority.BATCH
    if asked.rank < usual.rank and not anything:
        raise Refused(
            403,
            f"priority {stated} is of the class {asked}; this key's requests are {usual}: leave it out or give a positive one",
            param="priority",
        )
    return Ranked(asked, stated)
