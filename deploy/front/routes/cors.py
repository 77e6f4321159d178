"""Which web pages may ask from their visitors' browsers: none, unless the configuration names their origins."""

from collections.abc import Sequence
from typing import Any

from starlette.middleware.cors import CORSMiddleware


def allowing(origins: Sequence[str], app: Any) -> Any:
    """Return the ASGI application, answering browsers that ask for pages of these origins; no origins: as it is.

    Without credentials: a key is sent by the page itself, never by a browser on its own.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # OpenAI's clients send some of their own
        allow_credentials=False,
        expose_headers=["x-nestedfp-ignored", "x-request-id", "retry-after"],
        max_age=600,
    )
