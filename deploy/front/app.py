"""The outermost layer of the replica's HTTP server: which routes exist, and who answers them.

vLLM's application has many more routes, which would pass by admission, pins and disclosure, or change the engine's state. What
is not named here does not exist.
"""

import time
from collections.abc import Mapping
from typing import Any

from deploy.front.generate import Generate
from deploy.front.replies import Refused, refuse, request_id_of
from deploy.front.routes.pages import MODELS, VERSION, PageSource, models, show, version

READ, WRITE = ("GET", "HEAD"), ("POST",)


class Front:
    """ASGI application of a replica.

    Args:
        app: vLLM's application.
        generate: answers the routes that generate.
        pages: what this replica says of itself: GET routes by path.

    Attributes:
        asked: how many requests have come, those for these pages left out: whoever watches a replica goes on when it leaves.
    """

    def __init__(self, app: Any, generate: Generate, pages: Mapping[str, PageSource] | None = None) -> None:
        self._app = app
        self._pages = dict(pages or {})
        self._generate = generate
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)  # the application's start and end; there are no web sockets
            return
        arrived_s = time.monotonic()
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root).rstrip("/") or "/"
        route, method = self._generate.routes.get(path), scope["method"]
        told = path == VERSION or f"{path}/".startswith(f"{MODELS}/")
        request_id = request_id_of(scope)
        try:
            if not (route or told or path in self._pages):
                raise Refused(404, f"there is no {path[:200]} here")
            if method not in (allowed := WRITE if route else READ):
                more = ((b"allow", ", ".join(allowed).encode()),)  # HTTP demands it
                raise Refused(405, f"{path[:200]} takes {' or '.join(allowed)}, not {method}", more=more)
            if (page := self._pages.get(path)) is not None:
                await show(send, await page())
                return
            self.asked += 1
            if route is None:
                self._generate.keys.of(dict(scope["headers"]))
                serving = self._app.state.openai_serving_models
                await show(send, version() if path == VERSION else await models(serving, path[len(MODELS) + 1 :]))
                return
        except Refused as refusal:
            await refuse(send, refusal, request_id)
            return
        await self._generate(route, scope, receive, send, arrived_s)
