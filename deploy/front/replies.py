"""Answers in one piece, and errors in OpenAI's format."""

from collections.abc import Iterable
from typing import Any

import msgspec

from deploy.error_types import error_type
from deploy.haproxy.haproxy_config import ELSEWHERE_STATUS, RETRY_AFTER_S
from deploy.metrics.request_metrics import RequestOutcome

Headers = Iterable[tuple[bytes, bytes]]
Send = Any  # ASGI's send
OVERLOADED = "overloaded"  # the cause of a refusal for want of room
DONE = b"data: [DONE]\n\n"
GAP = b"\n\n"
JSON = (b"content-type", b"application/json")
REQUEST_ID = "request_id"  # inside the error, which is what openai's clients keep as ``error.body``, of streams as well


class Refused(Exception):
    """The request gets an error instead of an answer.

    Args:
        status: of the HTTP response.
        message: one sentence for the client.
        cause: ``OVERLOADED``, or what the service's own accounts make nothing of; the error's ``type`` is its status's.
        param: the field of the request that is to blame.
        retry_after_s: when to come again, where that helps: with 429, 503, and what is offered elsewhere.
        more: headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        cause: str | None = None,
        param: str | None = None,
        retry_after_s: int = RETRY_AFTER_S,
        more: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self._more = more
        self.status, self.cause, self.param, self.retry_after_s = status, cause, param, retry_after_s

    @property
    def outcome(self) -> RequestOutcome:
        """As what the request counts: a refusal for want of room, whatever its status, is no failure of the service."""
        if self.status == ELSEWHERE_STATUS:
            return RequestOutcome.ELSEWHERE
        if self.status == 429 or self.cause == OVERLOADED:
            return RequestOutcome.REFUSED
        if self.status in (401, 403):
            return RequestOutcome.DENIED
        return RequestOutcome.INVALID if self.status < 500 else RequestOutcome.FAILED

    def body(self, request_id: str | None) -> bytes:
        """The error in OpenAI's format, with the id of the request that it answers."""
        error = {"message": str(self), "type": error_type(self.status), "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": {**error, REQUEST_ID: request_id}})

    def headers(self) -> Headers:
        """What goes with it: when to come again, where that helps."""
        if self.status in (429, 503, ELSEWHERE_STATUS):
            return ((b"retry-after", str(self.retry_after_s).encode()), *self._more)
        return self._more


async def reply(send: Send, status: int, body: bytes, headers: Headers = (), kind: tuple[bytes, bytes] = JSON) -> None:
    """Send an answer in one piece; ``headers`` are those beside its length and its content type, which is ``kind``."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, refusal: Refused, request_id: str | None) -> None:
    """Send an error."""
    await reply(send, refusal.status, refusal.body(request_id), refusal.headers())


def request_id_of(scope: Any) -> str | None:
    """Return the id of a request: the client's, or HAProxy's or Ray Serve's word; None: nobody has given it one."""
    found = (value for name, value in scope["headers"] if name == b"x-request-id")
    return next(found, b"").decode("latin-1") or None


def error_events(body: bytes) -> bytes:
    """Return the events that end a stream with an error in OpenAI's format."""
    return b"data: " + body + GAP + DONE
