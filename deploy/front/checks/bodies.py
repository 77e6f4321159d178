"""Reads the bodies of requests, before it is known whether there is room for them: within bounds of time and of memory."""

import asyncio
from typing import Any

from deploy.front.replies import OVERLOADED, Refused

BODY_S = 60.0  # a body must have arrived within this time: a client that trickles holds a place in the path
# As many of the largest as may be on their way at once. Clients that send as many and finish none would take a replica's memory.
MOST_AT_ONCE = 64


class Bodies:
    """Reads bodies; those that arrive at the same time share a bound.

    Args:
        limit_bytes: of one.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0

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
