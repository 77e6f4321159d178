"""The OpenAPI document of the routes that exist here, made of vLLM's own descriptions of them."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from deploy import error_types
from deploy.front.routes.pages import PageSource, Shown

PATH = "/openapi.json"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string", "enum": error_types.ALL},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["integer", "string", "null"]},
            },
        }
    },
}
REFUSALS = {
    "400": "The request cannot be processed; the message says why.",
    "408": "The request did not arrive as a whole in time.",
    "413": "The body is too large.",
    "415": "The body is compressed.",
    "429": "Overloaded; Retry-After says when to come again.",
    "503": "No replica can take the request now, or begin it before its deadline; Retry-After says when to come again.",
}


def document(app: Any, paths: Iterable[str]) -> dict[str, Any]:
    """Return the OpenAPI document of those routes of a FastAPI application that have these paths."""
    from fastapi.openapi.utils import get_openapi

    wanted = set(paths)
    routes = [route for route in app.routes if getattr(route, "path", None) in wanted]
    found: dict[str, Any] = get_openapi(title="NestedFP", version="1", routes=routes)
    for operations in found.get("paths", {}).values():
        for operation in operations.values():
            refusals = {
                status: {"description": text, "content": {"application/json": {"schema": ERROR}}}
                for status, text in REFUSALS.items()
            }
            operation["responses"] = {**operation.get("responses", {}), **refusals}
            operation["responses"].pop("422", None)  # FastAPI's own; here 400
    return found


def page(app: Any, paths: Iterable[str]) -> PageSource:
    """Return the page that shows the document. Made when first asked for: it takes a second."""
    made: list[bytes] = []

    async def shown() -> Shown:
        if not made:
            made.append(json.dumps(await asyncio.to_thread(document, app, paths)).encode())
        return Shown(200, "application/json", made[0])

    return shown
