"""ASGI middleware for vLLM's own server: a request's precision on the way in, the answer's on the way out.

In: ``precision`` in the body or its ``vllm_xargs``, or the header ``x-nestedfp-precision``, reaches the engine with every route
that it computes for. Out: the header of the same name says what was decided when the answer began, ``usage.precision`` and
``usage.precision_tokens`` say what it became; in a stream they are in the usage chunk where the client asked for one, else in each
chunk with a ``finish_reason``.
"""

import json
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from nestedfp.vllm_plugin.frontend import Collected, collected, total, usage_of
from nestedfp.vllm_plugin.scheduling.pin import PIN_HEADER, PIN_KEY, AskedError, AskedPrecision, stated
from nestedfp.vllm_plugin.serving.disclosure import NamedDiscloser, StreamDiscloser, Tokens, disclose

# Of the routes that the engine computes for: the events that carry the usage; none: chunks without names.
ROUTES: dict[str, tuple[str, ...]] = {
    "/v1/responses": ("response.completed", "response.incomplete"),
    "/v1/messages": ("message_delta",),
    **dict.fromkeys(
        (
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
        ),
        (),
    ),
}
HEADER = PIN_HEADER.encode()
GAP = "\n\n"


class PrecisionMiddleware:
    """Around vLLM's application.

    Args:
        decided: returns what the header of an answer says, given what was asked for.
        forces_usage: returns whether vLLM adds a usage chunk to every stream.
    """

    def __init__(
        self, app: Any, decided: Callable[[AskedPrecision | None], str], forces_usage: Callable[[], bool]
    ) -> None:
        self._app = app
        self._decided = decided
        self._forces_usage = forces_usage

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or scope["method"] != "POST" or path not in ROUTES:
            await self._app(scope, receive, send)
            return
        messages = await _whole_body(receive)
        body = _as_mapping(b"".join(each.get("body", b"") for each in messages))
        try:
            asked = _asked(body, dict(scope["headers"]))
        except AskedError as error:
            await _refuse(send, error)
            return
        with collected(asked) as counts:
            answer = _Answer(send, counts, self._decided(asked), self._discloser(path, body, counts))
            await self._app(scope, _again(messages, receive), answer)

    def _discloser(self, path: str, body: dict[str, Any], counts: Collected) -> Any:
        if ROUTES[path]:
            return NamedDiscloser(lambda: _tokens(counts), ROUTES[path])
        options = body.get("stream_options")
        wants_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        return StreamDiscloser(
            lambda: _tokens(counts),
            wants_usage or self._forces_usage(),
            lambda: counts.prompt_tokens,
            lambda: counts.whole,
        )


async def _whole_body(receive: Any) -> list[dict[str, Any]]:
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _again(messages: list[dict[str, Any]], receive: Any) -> Any:
    """Return a ``receive`` that says these messages once more, then what comes after them."""
    said = iter(messages)

    async def again() -> dict[str, Any]:
        message: dict[str, Any] = next(said, None) or await receive()
        return message

    return again


def _as_mapping(body: bytes) -> dict[str, Any]:
    """Return a body; empty for one that vLLM will refuse."""
    try:
        given = from_json(body)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def _asked(body: dict[str, Any], headers: dict[bytes, bytes]) -> AskedPrecision | None:
    xargs, header = body.get("vllm_xargs"), headers.get(HEADER)
    asked = stated(
        (
            (body.get(PIN_KEY), PIN_KEY),
            (xargs.get(PIN_KEY) if isinstance(xargs, dict) else None, f"vllm_xargs.{PIN_KEY}"),
            (None if header is None else header.decode("latin-1"), PIN_HEADER),
        )
    )
    if asked is AskedPrecision.EXACT and body.get("use_beam_search"):  # a request for each token of each beam
        raise AskedError("use_beam_search cannot be exact: leave one of the two out", "use_beam_search")
    return asked


async def _refuse(send: Any, error: AskedError) -> None:
    content = {"message": str(error), "type": "BadRequestError", "param": error.where, "code": 400}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": content}).encode()})


def _tokens(counts: Collected) -> Tokens | None:
    return usage_of(total(counts.values())) if counts else None


class _Answer:
    """Passes an answer on: a stream as it comes, one in one piece when it is whole."""

    def __init__(self, send: Any, counts: Collected, decided: str, discloser: Any) -> None:
        self._send = send
        self._counts = counts
        self._decided = decided
        self._discloser = discloser
        self._kind = b""
        self._start: dict[str, Any] | None = None
        self._parts: list[bytes] = []

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            self._kind = dict(message["headers"]).get(b"content-type", b"")
            message = {**message, "headers": [*message["headers"], (HEADER, self._decided.encode())]}
            if self._kind.startswith(b"application/json"):
                self._start = message  # its length will change
                return
        elif message["type"] == "http.response.body" and self._start is not None:
            self._parts.append(message.get("body", b""))
            if not message.get("more_body"):
                await self._whole(self._start)
            return
        elif message["type"] == "http.response.body" and self._counts and self._kind.startswith(b"text/event-stream"):
            events = message.get("body", b"").decode().split(GAP)
            changed = GAP.join(self._discloser.event(each + GAP).removesuffix(GAP) if each else "" for each in events)
            message = {**message, "body": changed.encode()}
        await self._send(message)

    async def _whole(self, start: dict[str, Any]) -> None:
        body = b"".join(self._parts)
        if self._counts:
            answer = json.loads(body)
            answer["usage"] = disclose(answer.get("usage") or {}, _tokens(self._counts))
            body = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
        headers = [each for each in start["headers"] if each[0].lower() != b"content-length"]
        await self._send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await self._send({"type": "http.response.body", "body": body})
