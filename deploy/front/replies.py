"""Answers in one piece, and errors in OpenAI's format."""

from collections.abc import Iterable
from typing import Any

import msgspec

from deploy.haproxy_config import ELSEWHERE_STATUS, RETRY_AFTER_S
from deploy.metrics.requests import Outcome

Headers = Iterable[tuple[bytes, bytes]]
Send = Any  # ASGI's send
OVERLOADED = "overloaded_error"  # the kind of a refusal for want of room
JSON = (b"content-type", b"application/json")


class Refused(Exception):
    """The request gets an error instead of an answer.

    Args:
        status: of the HTTP response.
        message: one sentence for the client.
        kind: OpenAI's ``type`` of the error.
        param: the field of the request that is to blame.
        retry_after_s: when to come again, where that helps: with 429, 503, and what is offered elsewhere.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        retry_after_s: int = RETRY_AFTER_S,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.retry_after_s = status, kind, param, retry_after_s

    @property
    def outcome(self) -> Outcome:
        """As what the request counts: a refusal for want of room, whatever its status, is no failure of the service."""
        if self.status == ELSEWHERE_STATUS:
            return Outcome.ELSEWHERE
        if self.status == 429 or self.kind == OVERLOADED:
            return Outcome.REFUSED
        if self.status in (401, 403):
            return Outcome.DENIED
        return Outcome.INVALID if self.status < 500 else Outcome.FAILED

    def body(self) -> bytes:
        """The error in OpenAI's format."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})

    def headers(self) -> Headers:
        """What goes with it: when to come again, where that helps."""
        if self.status in (429, 503, ELSEWHERE_STATUS):
            return ((b"retry-after", str(self.retry_after_s).encode()),)
        return ()


async def reply(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """Send a JSON answer."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, refusal: Refused, headers: Headers = ()) -> None:
    """Send an error."""
    await reply(send, refusal.status, refusal.body(), (*refusal.headers(), *headers))
