"""Which web pages may ask from their visitors' browsers: none, unless the configuration names their origins."""

from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from deploy.front.replies import Refused


class _Origins(CORSMiddleware):
    """Starlette's, whose refusals are errors as all others here are."""

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        why = bytes(answer.body).decode()
        refusal = Refused(answer.status_code, f"{why}: pages of the origins in http.cors_origins may GET and POST")
        body = refusal.body(request_headers.get("x-request-id"))
        kept = {name: value for name, value in answer.headers.items() if not name.startswith("content-")}
        return Response(body, refusal.status, kept, "application/json")


def allowing(origins: Sequence[str], app: Any) -> Any:
    """Return the ASGI application, answering browsers that ask for pages of these origins; no origins: as it is.

    Without credentials: a key is sent by the page itself, never by a browser on its own.
    """
    if not origins:
        return app
    return _Origins(
        app,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # OpenAI's clients send some of their own
        allow_credentials=False,
        expose_headers=["x-nestedfp-ignored", "x-nestedfp-precision", "x-request-id", "retry-after"],
        max_age=600,
    )
