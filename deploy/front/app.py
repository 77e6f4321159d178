"""The outermost layer of the replica's HTTP server: which routes exist, and who answers them.

vLLM's application has many more routes, which would pass by admission, pins and disclosure, or change the engine's state. What
is not named here does not exist.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.front.checks.bounds import check_detokenize
from deploy.front.checks.requests import parse
from deploy.front.generate import Generate
from deploy.front.replies import Headers, Refused, identifying, refuse, request_id_of
from deploy.front.routes import models, openapi
from deploy.front.routes.pages import PageSource, show

# Answered by vLLM's application.
PASSED_ON = {
    "/v1/models": ("GET",),
    "/tokenize": ("POST",),
    "/detokenize": ("POST",),
    "/version": ("GET",),
}


def _body_of(path: str) -> Any:
    """Return vLLM's class of what a route that is passed on takes, or a union of such."""
    from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

    return TokenizeRequest if path == "/tokenize" else DetokenizeRequest


class WrongMethod(Refused):
    """The route is there, and takes other methods."""

    def __init__(self, path: str, method: str, allowed: Sequence[str]) -> None:
        super().__init__(405, f"{path[:200]} takes {' or '.join(allowed)}, not {method}")
        self._allowed = allowed

    def headers(self) -> Headers:
        """Which ones; HTTP demands it."""
        return ((b"allow", ", ".join(self._allowed).encode()),)


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
        paths = {*generate.routes, *PASSED_ON}
        self._pages = {openapi.PATH: openapi.page(app, paths), **(pages or {})}
        self._generate = generate
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)  # the application's start and end; there are no web sockets
            return
        arrived_s = time.monotonic()
        path, method = scope["path"].removeprefix(scope.get("root_path", "")), scope["method"]
        route = self._generate.routes.get(path)
        own = path.startswith(models.PREFIX) or path in self._pages
        request_id = request_id_of(scope)
        allowed = ("POST",) if route else (("GET",) if own else PASSED_ON.get(path))
        try:
            if allowed is None:
                raise Refused(404, f"there is no {path[:200]} here")
            if method not in allowed:
                raise WrongMethod(path, method, allowed)
            if (page := self._pages.get(path)) is not None:
                await show(identifying(send, request_id), await page())
                return
            self.asked += 1
            if route is None:
                self._generate.keys.of(dict(scope["headers"]))
                if own:
                    await show(send, await models.entry(self._app, scope, receive, path.removeprefix(models.PREFIX)))
                    return
                await self._pass_on(path, scope, receive, identifying(send, request_id))
                return
        except Refused as refusal:
            await refuse(send, refusal, request_id)
            return
        await self._generate(route, scope, receive, send, arrived_s)

    async def _pass_on(self, path: str, scope: Any, receive: Any, send: Any) -> None:
        # Whom a web page may let its visitors' browsers ask is not for vLLM to say: it would allow every page.
        scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != b"origin"]}
        if scope["method"] == "GET":
            await self._app(scope, receive, send)
            return
        body = await self._generate.bodies.read(receive)
        # What vLLM's application says of a body that does not fit is pydantic's own account of it.
        bounded = check_detokenize if path == "/detokenize" else lambda request: None
        parse(body, dict(scope["headers"]), _body_of(path), check=bounded)
        given = False

        async def again() -> Any:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)
