"""What a replica says of itself over HTTP: a page is an answer in one piece that needs no engine."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple


class Shown(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    body: bytes


PageSource = Callable[[], Awaitable[Shown]]


async def show(send: Any, shown: Shown) -> None:
    """Send an answer through ASGI."""
    headers = [
        (b"content-type", shown.content_type.encode()),
        (b"content-length", str(len(shown.body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": shown.status, "headers": headers})
    await send({"type": "http.response.body", "body": shown.body})
