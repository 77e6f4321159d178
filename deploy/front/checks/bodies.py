"""Reads the bodies of requests, before it is known whether there is room for them: within bounds of time and of memory."""

import asyncio
import heapq
import itertools
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from deploy.front.replies import OVERLOADED, Refused

BODY_S = 60.0  # a body must have arrived within this time: a client that trickles holds a place in the path
# As many of the largest as may be on their way at once. Clients that send as many and finish none would take a replica's memory.
MOST_AT_ONCE = 64
SMALL_BYTES = 1 << 14  # of a body, which is parsed in a tenth of a second whatever it holds
# The type and subtype alone: a browser sends any page's text/plain with whatever parameters the page wants.
JSON_KIND = re.compile(r"application/json|[\w!#$&^.+-]+/[\w!#$&^.+-]+\+json", re.ASCII)


def check_kind(headers: Mapping[bytes, bytes]) -> None:
    """Check what a request's headers say of its body.

    Raises:
        Refused: 415 for a compressed body, 400 for one that is not said to be JSON.
    """
    coding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    if coding not in ("", "identity"):
        raise Refused(415, f"expected a body without Content-Encoding, got {coding[:80]!r}: send it uncompressed")
    kind = headers.get(b"content-type", b"").decode("latin-1")
    if not JSON_KIND.fullmatch(kind.partition(";")[0].strip().lower()):
        raise Refused(
            400,
            "expected a JSON body with the header 'Content-Type: application/json'; "
            f"got Content-Type {kind[:80] or 'none'}",
        )


class Bodies:
    """Reads bodies; those that arrive at the same time share a bound.

    Args:
        limit_bytes: of one.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._parsing = False
        self._rested_s = 0.0  # of the monotonic clock

    async def read(self, receive: Any) -> bytes:
        """Return a whole body.

        Raises:
            Refused: 413 beyond the limit, 408 when it takes too long, 400 when the client left before its end, 503 when too much is
                on its way already.
        """
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_S):
                await self._read(receive, parts)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {BODY_S:.0f} s") from None
        finally:
            self._held_bytes -= sum(map(len, parts))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @asynccontextmanager
    async def parsing(self, size: int) -> AsyncIterator[None]:
        """Parse a body of so many bytes inside. Of those that are not small one is parsed at a time, the smallest first.

        That holds the event loop. Between two of them it is everybody else's for as long as the first one took.
        """
        if size <= SMALL_BYTES:
            yield
            return
        if self._parsing:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (size, next(self._order), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        self._parsing = True
        try:
            await asyncio.sleep(max(0.0, self._rested_s - time.monotonic()))
            began_s = time.monotonic()
            try:
                yield
            finally:
                self._rested_s = 2 * time.monotonic() - began_s
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():  # else its client has left
                turn.set_result(None)
                return
        self._parsing = False

    async def _read(self, receive: Any, parts: list[bytes]) -> None:
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the body ended before its announced length")
            part = message.get("body", b"")
            size += len(part)
            if size > self._limit_bytes:
                raise Refused(
                    413,
                    f"the body is larger than {self._limit_bytes} bytes; send a shorter prompt or raise http.max_body_bytes",
                )
            if self._held_bytes + len(part) > MOST_AT_ONCE * self._limit_bytes:
                raise Refused(503, "too many large bodies are on their way; try again", OVERLOADED)
            parts.append(part)
            self._held_bytes += len(part)
            if not message.get("more_body"):
                return
