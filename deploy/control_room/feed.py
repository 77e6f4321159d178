"""The stream behind the control room: server-sent events (text/event-stream) from one producer to a bounded number of pages.

The producer asks the controller once a second, whoever listens: a page that is opened in an incident shows what came before.
Each event is encoded once. A listener that does not keep up is let go; its page comes again and gets everything anew.

Events: ``whole`` (``columns`` of all samples, ``decisions``, ``status``, and ``judged``: each replica's counts of requests some
minutes ago) once, then ``tick`` (``sample``, new ``decisions``, ``status``) every second; where the controller does not answer,
``status`` is null and ``error`` says why. ``end``: the stream ends and the page should come again; ``denied``: the key no longer
opens it.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from deploy.control_room.samples import StatusHistory
from deploy.metrics.new_decisions import Ask, NewDecisions

log = logging.getLogger(__name__)

PERIOD_S = 1.0
SAMPLES_KEPT = 900  # a quarter of an hour
DECISIONS_KEPT = 200
LISTENERS = 32
EVENTS_WAITING = 5  # for one listener
JUDGED_EVERY, JUDGED_KEPT = 10, 30  # periods, entries: five minutes


class Feed:
    """Follows one controller and tells every listener.

    Args:
        ask: asks the controller.
        ending: whether this process is about to stop: listeners are let go then.
        period_s: between two ticks.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        ask: Ask,
        ending: Callable[[], bool] = lambda: False,
        period_s: float = PERIOD_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ask, self._ending, self._period_s, self._wall = ask, ending, period_s, wall
        self._timeline = StatusHistory(SAMPLES_KEPT)
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS_KEPT)
        self._judged: deque[dict[str, list[float]]] = deque(maxlen=JUDGED_KEPT)
        self._new_decisions = NewDecisions(ask)
        self._ticks = 0
        self._status: dict[str, Any] | None = None
        self._error: str | None = None
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._producer: asyncio.Task[None] | None = None

    @property
    def may_enter(self) -> bool:
        """Whether there is room for another listener."""
        return len(self._listeners) < LISTENERS and not self._ending()

    def start(self) -> None:
        """Start the producer on the running event loop, unless it runs."""
        if self._producer is None or self._producer.done():
            self._producer = asyncio.get_running_loop().create_task(self._produce())

    async def stop(self) -> None:
        """End the producer and let all listeners go."""
        self._let_go()
        if self._producer is not None:
            self._producer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._producer

    async def events(self, allowed: Callable[[], object]) -> AsyncIterator[bytes]:
        """Yield the events of one listener.

        Args:
            allowed: raises when the listener may no longer listen; asked before every event.
        """
        self.start()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(EVENTS_WAITING + 1)
        self._listeners.add(queue)
        try:
            yield self._whole()
            while (event := await queue.get()) is not None:
                try:
                    allowed()
                except Exception:
                    yield _event("denied", {})
                    return
                yield event
            yield _event("end", {})
        finally:
            self._listeners.discard(queue)

    def _whole(self) -> bytes:
        return _event(
            "whole",
            {
                "wall_s": self._wall(),
                "columns": self._timeline.columns(),
                "judged": self._oldest_judged(),
                "decisions": list(self._decisions),
                "status": self._status,
                "error": self._error,
            },
        )

    def _oldest_judged(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for entry in self._judged:
            for name, counts in entry.items():
                found.setdefault(name, counts)
        return found

    async def _produce(self) -> None:
        while True:
            began_s = time.monotonic()
            if self._ending():
                self._let_go()
            try:
                tick = await self._tick()
            except Exception:
                log.exception("a tick of the control room failed; the next one tries again")
            else:
                self._tell(tick)
            await asyncio.sleep(max(0.0, self._period_s - (time.monotonic() - began_s)))

    async def _tick(self) -> bytes:
        sample, new = None, []
        try:
            self._status = await self._ask("status")
            self._ticks += 1
            new = (await self._new_decisions.take())[-DECISIONS_KEPT:]
            self._decisions.extend(new)
            self._error = None
            sample = self._timeline.add(self._wall(), self._status)
            if self._ticks % JUDGED_EVERY == 1:
                now_s, replicas = self._wall(), self._status["replicas"]
                self._judged.append(
                    {each["id"]: [now_s, each["slo_evaluated"], each["within_slo"]] for each in replicas}
                )
        except Exception as error:
            # HTTPException says it in one sentence; anything else is for the log.
            self._status, self._error = None, str(getattr(error, "detail", "the controller does not answer"))
            self._timeline.gap()
            log.debug("no status for the control room: %r", error)
        content = {"wall_s": self._wall(), "sample": sample and sample._asdict(), "decisions": new}
        return _event("tick", {**content, "status": self._status, "error": self._error})

    def _tell(self, event: bytes) -> None:
        for queue in list(self._listeners):
            if queue.qsize() >= EVENTS_WAITING:
                self._listeners.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(event)

    def _let_go(self) -> None:
        for queue in self._listeners:
            queue.put_nowait(None)
        self._listeners.clear()


def _event(name: str, content: Any) -> bytes:
    # JSON has no line break of its own, so the data is one line.
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"
