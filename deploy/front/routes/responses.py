"""OpenAI's ``/v1/responses``, without what would have to be kept between two requests, and without tools that run here."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from deploy.access.admission import Asked
from deploy.front.checks.asked import asked_of_input
from deploy.front.checks.requests import check_bounds
from deploy.front.replies import GAP, Refused
from deploy.front.routes.text import Route, tokens_of
from nestedfp.vllm_plugin.serving.disclosure import NamedDiscloser

LAST_EVENTS = ("response.completed", "response.incomplete")
BEFORE_THE_ENGINE = ("response.created", "response.in_progress")  # events that say nothing of it


class ResponsesRoute(Route):
    """A ``Route``; the usage stands in the response of the last event."""

    def check(self, request: Any) -> None:
        for name in ("background", "previous_response_id", "previous_input_messages"):
            if vars(request).get(name):
                raise Refused(
                    400, f"{name}: no response is kept here; send the whole conversation in input", param=name
                )
        for number, tool in enumerate(request.tools):
            if tool.type != "function":
                where = f"tools.{number}.type"
                raise Refused(
                    400, f"{where}: expected 'function', which the client runs, got {tool.type!r}", param=where
                )
        check_bounds(request)

    def asks(self, request: Any) -> Asked:
        return asked_of_input(request)

    def is_plain(self, request: Any) -> bool:
        return False  # its events are vLLM's

    def answer(self, result: Any) -> dict[str, Any]:
        return result.model_dump(mode="json", by_alias=True)

    def discloser(self, request: Any, counts: Any, prompt_tokens: Callable[[], int]) -> Any:
        return NamedDiscloser(lambda: tokens_of(counts), LAST_EVENTS)

    def last_words(self, body: bytes) -> bytes:
        return b"event: error\ndata: " + body + GAP  # events have names here

    async def events(self, result: Any) -> AsyncIterator[str]:
        """See ``Route.events``: an error that comes before the engine has begun comes before any event."""
        early: list[str] = []
        async for event in result:
            text = f"event: {event.type}\ndata: {event.model_dump_json(by_alias=True)}\n\n"
            if event.type in BEFORE_THE_ENGINE:
                early.append(text)
                continue
            for each in [*early, text]:
                yield each
            early.clear()
