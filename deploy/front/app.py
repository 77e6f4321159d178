"""The outermost layer of the replica's HTTP server: which routes exist, and who answers them.

vLLM's application has many more routes, which would pass by admission, pins and disclosure, or change the engine's state. What
is not named here does not exist.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.front.generate import Generate
from deploy.front.replies import Refused, refuse, request_id_of
from deploy.front.routes.pages import MODELS, VERSION, PageSource, models, show, version

READ, WRITE = ("GET", "HEAD"), ("POST",)


@dataclass(eq=False)
class Front:
    """ASGI application of a replica."""

    app: Any  # vLLM's
    generate: Generate
    pages: Mapping[str, PageSource] = field(default_factory=dict)  # GET routes by path, of this replica itself
    # Requests that have come, those for these pages left out: whoever watches a replica goes on when it leaves.
    asked: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)  # the application's start and end; there are no web sockets
            return
        arrived_s = time.monotonic()
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root).rstrip("/") or "/"
        route, method = self.generate.routes.get(path), scope["method"]
        told = path == VERSION or f"{path}/".startswith(f"{MODELS}/")
        request_id = request_id_of(scope)
        try:
            if not (route or told or path in self.pages):
                raise Refused(404, f"there is no {path[:200]} here")
            if method not in (allowed := WRITE if route else READ):
                more = ((b"allow", ", ".join(allowed).encode()),)  # HTTP demands it
                raise Refused(405, f"{path[:200]} takes {' or '.join(allowed)}, not {method}", more=more)
            if (page := self.pages.get(path)) is not None:
                await show(send, await page())
                return
            self.asked += 1
            if route is None:
                self.generate.keys.of(dict(scope["headers"]))
                serving = self.app.state.openai_serving_models
                await show(send, version() if path == VERSION else await models(serving, path[len(MODELS) + 1 :]))
                return
        except Refused as refusal:
            await refuse(send, refusal, request_id)
            return
        await self.generate(route, scope, receive, send, arrived_s)
