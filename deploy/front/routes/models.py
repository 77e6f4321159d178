"""One model by its id: its entry in vLLM's list. Ray Serve's own route for it knows another object."""

from typing import Any

import msgspec

from deploy.front.replies import Refused
from deploy.front.routes.pages import Shown

LIST = "/v1/models"
PREFIX = f"{LIST}/"


async def entry(app: Any, scope: Any, receive: Any, model: str) -> Shown:
    """Return the answer to ``GET /v1/models/MODEL``.

    Args:
        app: vLLM's application, which is asked for the list.
        scope: of the request.

    Raises:
        Refused: 404 where the list has no such model.
    """
    parts: list[bytes] = []

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    await app({**scope, "path": scope.get("root_path", "") + LIST, "raw_path": LIST.encode()}, receive, send)
    for found in msgspec.json.decode(b"".join(parts))["data"]:
        if found["id"] == model:
            return Shown(200, "application/json", msgspec.json.encode(found))
    raise Refused(404, f"there is no model {model[:200]!r} here; {LIST} lists those that there are", param="model")
