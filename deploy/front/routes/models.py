"""One model by its id: its entry in vLLM's list. Ray Serve's own route for it knows another object."""

import logging
from typing import Any

import msgspec

from deploy.front.checks.faults import one_line
from deploy.front.replies import Refused
from deploy.front.routes.pages import Shown

log = logging.getLogger(__name__)

LIST = "/v1/models"
PREFIX = f"{LIST}/"


class _Error(msgspec.Struct):
    message: str


class _Answer(msgspec.Struct):
    """What the list answers: models, or an error."""

    data: list[dict[str, Any]] | None = None
    error: _Error | None = None


async def entry(app: Any, scope: Any, receive: Any, model: str) -> Shown:
    """Return the answer to ``GET /v1/models/MODEL``.

    Args:
        app: vLLM's application, which is asked for the list.
        scope: of the request.

    Raises:
        Refused: 404 where the list has no such model; the list's own error where it has one; 500 where it does not answer.
    """
    status, body = await _asked(app, scope, receive)
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError:  # no JSON, or another object
        answer = _Answer()
    if status >= 400 and answer.error is not None:
        raise Refused(status, answer.error.message)
    if status != 200 or answer.data is None:
        log.error("%s: expected 200 and a list, got %d and %r", LIST, status, body[:200])
        raise Refused(status if status >= 500 else 500, f"{LIST} does not answer; the log says why")
    for found in answer.data:
        if found.get("id") == model:
            return Shown(200, "application/json", msgspec.json.encode(found))
    raise Refused(404, f"there is no model {model[:200]!r} here; {LIST} lists those that there are", param="model")


async def _asked(app: Any, scope: Any, receive: Any) -> tuple[int, bytes]:
    """Return status and body of the list; a status of 500 where nothing comes."""
    status = 500
    parts: list[bytes] = []

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    inner = {**scope, "path": scope.get("root_path", "") + LIST, "raw_path": LIST.encode()}
    try:
        await app(inner, receive, send)
    except Exception as error:  # which Starlette passes on when it has answered with 500
        log.error("%s: %s: %s", LIST, type(error).__name__, one_line(error))
        status = max(status, 500)
    return status, b"".join(parts)
