"""Replicas that wait for the next directive, each in a call of its own, which is answered when there is one.

A call from the replica comes by another way than one to it: its answer arrives in whatever thread has asked, and not on the event
loop that writes the replica's answers. Zero I/O.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.messages import Directive

HOLD_S = 2.0  # a call is answered with nothing then: a caller that lives asks again
BETWEEN_S = 2.0  # a replica that has asked so lately will ask again: it is about to acknowledge


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent last.

    Attributes:
        token: names it; unlike those of any other controller.
        directive: ready for JSON.
    """

    token: str
    directive: dict[str, Any]


class StandingCalls:
    """All calls that wait.

    Args:
        hold_s: how long one may wait, in seconds.
        clock: seconds, monotonic.
    """

    def __init__(self, hold_s: float = HOLD_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold_s, self._clock = hold_s, clock
        self._life = secrets.token_hex(8)
        self._count = 0
        self._sent: Sent | None = None
        self._waiting: dict[str, asyncio.Future[Sent | None]] = {}
        self._left_s: dict[str, float] = {}  # when each replica's last call was answered, by the clock

    async def wait(self, replica_id: str, seen: str | None) -> Sent | None:
        """Return what is sent next, or has been sent since the caller saw something; None: nothing, ask again.

        A newer call of the same replica takes the place of an older one, which returns None.

        Args:
            replica_id: of the caller.
            seen: the token of what it saw last; None: nothing yet.
        """
        if self._sent is not None and self._sent.token != seen:
            self._left_s[replica_id] = self._clock()
            return self._sent
        if (older := self._waiting.get(replica_id)) is not None and not older.done():
            older.set_result(None)
        mine = self._waiting[replica_id] = asyncio.get_running_loop().create_future()
        try:
            done, _ = await asyncio.wait({mine}, timeout=self._hold_s)
            return mine.result() if done else None
        finally:
            if self._waiting.get(replica_id) is mine:
                del self._waiting[replica_id]
            self._left_s[replica_id] = self._clock()

    def send(self, directive: Directive) -> None:
        """Answer every call that waits, and the next one of each replica that does not at the moment."""
        self._count += 1
        self._sent = Sent(f"{self._life}-{self._count}", directive.model_dump(mode="json"))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(self._sent)

    def close(self) -> None:
        """Answer every call that waits with nothing."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    def listening(self) -> set[str]:
        """Return the replicas that are told what is sent now: they wait, or are about to ask again."""
        since_s = self._clock() - BETWEEN_S
        self._left_s = {replica_id: at_s for replica_id, at_s in self._left_s.items() if at_s >= since_s}
        return {*self._waiting, *self._left_s}
