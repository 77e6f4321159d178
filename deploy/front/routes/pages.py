"""What a replica says of itself over HTTP: a page is an answer in one piece that needs no engine."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from deploy.front.replies import Refused, reply

MODELS, VERSION = "/v1/models", "/version"


class Shown(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    body: bytes


PageSource = Callable[[], Awaitable[Shown]]


async def show(send: Any, shown: Shown) -> None:
    """Send an answer through ASGI."""
    kind = (b"content-type", shown.content_type.encode())
    await reply(send, shown.status, shown.body, ((b"cache-control", b"no-store"),), kind)


def version() -> Shown:
    """Return the answer to ``GET /version``: vLLM's."""
    from vllm.version import __version__

    return Shown(200, "application/json", msgspec.json.encode({"version": __version__}))


async def models(serving: Any, model: str) -> Shown:
    """Return the answer to ``GET /v1/models``, or to ``GET /v1/models/MODEL``: its entry in the list.

    Raises:
        Refused: 404 where the list has no such model.
    """
    found = await serving.show_available_models()
    for card in [found] if not model else [each for each in found.data if each.id == model]:
        return Shown(200, "application/json", msgspec.json.encode(card.model_dump()))
    raise Refused(404, f"there is no model {model[:200]!r} here; {MODELS} lists those that there are", param="model")
