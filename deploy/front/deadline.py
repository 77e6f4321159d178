"""Ends a request that the engine has not begun when its queue deadline is up.

In front of the engine, where a request waits for a tokenizer, it is looked at when the request is handed over; the wait for the
trial of a grammar is told how long it may take. In the engine a timer runs until the first token. When it is up the engine is asked
whether it has begun the request; only if not, the request is taken out. One that has begun is finished, however late.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from deploy.front.replies import Refused
from nestedfp.vllm_plugin.frontend import Collected

log = logging.getLogger(__name__)


class Queue(Protocol):
    """The engine's queue, as far as a deadline needs it."""

    async def not_begun(self, counts: Collected) -> list[str]:
        """Return what to abort of a request if the engine has begun nothing of it; else nothing."""

    async def abort(self, ids: list[str]) -> None:
        """Take them out; what waits for their outputs gets a last one."""


@dataclass(frozen=True)
class Queueing:
    """How requests wait for the engine.

    Attributes:
        deadline_s: from the arrival, for requests that say nothing; None: as long as it takes.
        by_priority: the engine begins the ones of a lower number first (vLLM's ``scheduling_policy``).
        queue: of the engine; None: it cannot be asked which requests it has begun.
    """

    deadline_s: float | None = None
    by_priority: bool = False
    queue: Queue | None = None


class EngineQueue:
    """The queue of a NestedFP engine.

    Args:
        client: vLLM's ``AsyncLLM``.
        call: calls a utility of the engine core by name.
    """

    def __init__(self, client: Any, call: Callable[..., Awaitable[Any]]) -> None:
        self._client, self._call = client, call

    async def not_begun(self, counts: Collected) -> list[str]:
        # By the object that collects this one request's tokens: clients choose request ids, and may use one twice.
        states = self._client.output_processor.request_states
        own = {
            rid: state
            for rid in counts.ids
            if (state := states.get(rid)) is not None and getattr(state, "nestedfp_collecting", None) is counts
        }
        # Counts: a sequence of it has ended already, though others still wait.
        if counts or not own or not await self._call("nestedfp_not_begun", list(own)):
            return []
        # The sequences of one prompt go through their parent, which would stay behind otherwise.
        return list(
            {rid if state.parent_req is None else state.parent_req.request_id: None for rid, state in own.items()}
        )

    async def abort(self, ids: list[str]) -> None:
        await self._client.abort(ids, internal=True)


class QueueDeadline:
    """The deadline of one request.

    Args:
        at_s: when the engine must have begun it, by ``clock``.
        late: makes the refusal of a request whose time is up; says whether the engine has it.
        queue: of the engine; None: it cannot be asked, and a request that it has is finished.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        at_s: float,
        late: Callable[[bool], Refused],
        queue: Queue | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_s, self._late, self._queue, self._clock = at_s, late, queue, clock
        self._counts = Collected()
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._handed_over = False
        self._over = False  # nothing more is to be watched
        self.refused: Refused | None = None  # the request was taken out of the engine

    @property
    def left_s(self) -> float | None:
        """How long the request may still wait in front of the engine; None: as long as it takes, since a part of it is there."""
        return None if self._handed_over else max(0.0, self._at_s - self._clock())

    def hand_over(self, counts: Collected) -> None:
        """The engine is about to be given the request, or one of its prompts.

        Args:
            counts: the object that collects the request's tokens.

        Raises:
            Refused: its time is up.
        """
        if self.refused is not None:
            raise self.refused
        if self._handed_over:
            return
        left_s = self._at_s - self._clock()
        if left_s <= 0:
            self.refused = self._late(False)
            raise self.refused
        self._handed_over = True
        if self._queue is not None:
            self._counts = counts
            self._timer = asyncio.get_running_loop().call_later(left_s, self._up)

    def begun(self) -> None:
        """The engine has answered with a first token, or the request has ended."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """The request has left."""
        self.begun()
        if self._asking is not None and self.refused is None:  # an abort that is on its way must arrive
            self._asking.cancel()

    def _up(self) -> None:
        if not self._over:
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        assert self._queue is not None
        try:
            ids = await self._queue.not_begun(self._counts)
            if not ids or self._over:
                return
            self._over = True
            self.refused = self._late(True)  # before the abort: its last output wakes up whoever waits
            await self._queue.abort(ids)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.warning("a request beyond its queue deadline stays: the engine does not answer: %r", error)
