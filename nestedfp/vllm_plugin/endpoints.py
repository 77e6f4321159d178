"""Control and disclosure for a plain ``vllm serve``, through vLLM's own endpoint plugins.

    VLLM_PLUGINS=nestedfp NESTEDFP_ADMIN_KEY_FILE=FILE vllm serve MODEL --quantization nestedfp --dtype float16

vLLM loads an endpoint plugin only where ``VLLM_PLUGINS`` names it. It adds

    GET  /nestedfp/stats       the engine's counters
    POST /nestedfp/directive   {"mode": "fp16" or "fp8"}, or {"mode": "auto", "rule": {"fp8_step_tokens": 512}} with the fields of
                               ``nestedfp.steps.step_rule.StepRule``; with ``Authorization: Bearer KEY``

and to every answer of text, and every one of vectors in JSON, ``usage.precision`` and ``usage.precision_tokens``; in a
stream the latter as a comment (``: nestedfp {...}``) before its end, which clients pass over.
"""

import itertools
import json
from argparse import Namespace
from dataclasses import asdict, fields
from typing import Any

from nestedfp import admin_key
from nestedfp.answers import answer_of
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from nestedfp.vllm_plugin.frontend import collected, total, usage_of

DISCLOSED = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/embeddings",
        "/v2/embed",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
    }
)
DONE = b"data: [DONE]\n\n"


class Endpoints:
    """vLLM's ``EndpointPlugin``."""

    name = "nestedfp"
    required_tasks = ("generate", "embed", "classify", "token_embed", "token_classify")  # one of them

    def __init__(self) -> None:
        self._client: Any = None
        self._epochs = itertools.count(1)

    def attach_router(self, app: Any) -> None:
        """Add the routes and the disclosure to vLLM's application."""
        app.add_middleware(Disclosure)
        app.add_api_route("/nestedfp/stats", self.stats, methods=["GET"])
        app.add_route("/nestedfp/directive", self.directive, methods=["POST"])

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Take the way to the engine."""
        self._client = engine_client

    async def stats(self) -> dict[str, Any]:
        """Return the engine's counters; see ``PrecisionMixin.nestedfp_stats``."""
        result: dict[str, Any] = await self._client.engine_core.call_utility_async("nestedfp_stats")
        return result

    async def directive(self, request: Any) -> Any:
        """Put a directive in force from the next step on."""
        from starlette.responses import JSONResponse

        if (refused := admin_key.refusal(request.headers.get("authorization"))) is not None:
            return JSONResponse({"error": {"message": refused[1], "code": refused[0]}}, refused[0])
        try:
            mode, rule = _order(await request.json())
        except ValueError as error:
            return JSONResponse({"error": {"message": str(error), "code": 400}}, 400)
        content = {"mode": mode.value, "epoch": next(self._epochs), "rule": asdict(rule)}
        await self._client.engine_core.call_utility_async("nestedfp_set_directive", content)
        return JSONResponse({"mode": mode.value})


def _order(body: Any) -> tuple[DirectiveMode, StepRule]:
    """Read the body of a directive.

    Raises:
        ValueError: saying what was expected.
    """
    if not isinstance(body, dict) or body.get("mode") not in list(DirectiveMode) or body.keys() - {"mode", "rule"}:
        raise ValueError(
            f'expected {{"mode": one of {[mode.value for mode in DirectiveMode]}}}, and with "auto" a "rule"'
        )
    mode, given = DirectiveMode(body["mode"]), body.get("rule")
    if mode is not DirectiveMode.AUTO:
        if given is not None:
            raise ValueError(f'expected a rule with "auto" only: {mode.value!r} is every step\'s precision')
        return mode, StepRule()
    known = [field.name for field in fields(StepRule)]
    if not isinstance(given, dict) or not given or given.keys() - set(known):
        # Without one, no step would ever be FP8.
        raise ValueError(f'"auto" needs a "rule" with at least one of {known}; got {json.dumps(given)[:200]}')
    for name, value in given.items():
        if type(value) not in (int, float):
            raise ValueError(f"rule.{name}: expected a number; got {json.dumps(value)[:200]}")
    return mode, StepRule(**given)


class Disclosure:
    """ASGI middleware that adds the tokens by precision to every answer of the routes that the engine computes for."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] not in DISCLOSED:
            await self._app(scope, receive, send)
            return
        with collected() as counts:
            answer = _Answer(send, counts)
            await self._app(scope, receive, answer)


class _Answer:
    """Passes an answer on: a stream as it comes, one in one piece when it is whole."""

    def __init__(self, send: Any, counts: dict[str, Any]) -> None:
        self._send = send
        self._counts = counts
        self._start: dict[str, Any] | None = None
        self._parts: list[bytes] = []

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kind = dict(message["headers"]).get(b"content-type", b"")
            if message["status"] == 200 and kind.startswith(b"application/json"):
                self._start = message  # its length will change
                return
        elif message["type"] == "http.response.body" and self._start is not None:
            self._parts.append(message.get("body", b""))
            if not message.get("more_body"):
                await self._whole(self._start)
            return
        elif message["type"] == "http.response.body" and message.get("body", b"").endswith(DONE) and self._counts:
            body = message["body"]
            note = b": nestedfp " + json.dumps(self._tokens()).encode() + b"\n\n"
            message = {**message, "body": body[: -len(DONE)] + note + DONE}
        await self._send(message)

    async def _whole(self, start: dict[str, Any]) -> None:
        body = b"".join(self._parts)
        if self._counts:
            answer = json.loads(body)
            tokens = self._tokens()
            told = {"precision": answer_of(tokens).value, "precision_tokens": tokens}
            answer["usage"] = {**(answer.get("usage") or {}), **told}
            body = json.dumps(answer, ensure_ascii=False).encode()
        headers = [each for each in start["headers"] if each[0].lower() != b"content-length"]
        await self._send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await self._send({"type": "http.response.body", "body": body})

    def _tokens(self) -> Any:
        return usage_of(total(self._counts.values()))
