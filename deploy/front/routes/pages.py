"""What a replica says of itself over HTTP: a page is an answer in one piece that needs no engine."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from deploy.front.replies import Refused

MODELS = "/v1/models"


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


async def model_entry(serving: Any, model: str) -> Shown:
    """Return the answer to ``GET /v1/models/MODEL``: its entry in vLLM's list. Ray Serve's own route for it knows another object.

    Args:
        serving: vLLM's ``OpenAIServingModels``.

    Raises:
        Refused: 404 where the list has no such model.
    """
    for card in (await serving.show_available_models()).data:
        if card.id == model:
            return Shown(200, "application/json", msgspec.json.encode(card.model_dump()))
    raise Refused(404, f"there is no model {model[:200]!r} here; {MODELS} lists those that there are", param="model")
