"""The request headers that this service reads; every other one is removed, at HAProxy and again in front of each replica's server.

Ray Serve, vLLM and uvicorn read headers of their own from any client: ``x-request-disconnect-disabled`` has a request go on whose
client has left, ``x-request-timeout-seconds`` ends it with an error in plain text, others name a model, a session, a rank or
another client's address. So the list says which headers pass, not which do not: another version of either may read more.

Standard library only, and light: HAProxy's launcher imports it.
"""

from typing import Any

KNOWN = (
    "accept",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "x-nestedfp-attempt",
    "x-nestedfp-precision",
    "x-nestedfp-queue-deadline-s",
    "x-nestedfp-session",
    "x-request-id",
    "x-vllm-priority",
)
# Ray Serve reads these as UTF-8 and fails on what is none: with 500, in plain text, before this service has seen the request.
READ_BY_RAY_SERVE = frozenset({b"traceparent", b"tracestate", b"x-request-id"})
_KNOWN = frozenset(name.encode() for name in KNOWN)


class KnownHeaders:
    """ASGI middleware that passes on ``KNOWN`` headers alone, and those that Ray Serve reads in ASCII only."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if "headers" in scope:
            scope["headers"] = [(name, value) for name, value in scope["headers"] if _passes(name.lower(), value)]
        await self._app(scope, receive, send)


def _passes(name: bytes, value: bytes) -> bool:
    return name in _KNOWN and (value.isascii() or name not in READ_BY_RAY_SERVE)


def middlewares() -> list[Any]:
    """Return what Ray Serve is to put around the server of each replica; it calls this by the name in ``ENVIRONMENT``."""
    from starlette.middleware import Middleware

    return [Middleware(KnownHeaders)]


# Of a replica's process, before it imports Ray Serve.
ENVIRONMENT = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{__name__}:{middlewares.__name__}"}
