"""The routes of a model that makes text: completions and chats."""

from dataclasses import dataclass
from typing import Any

from deploy.access.admission import Asked
from deploy.front import streams
from deploy.front.checks.asked import asked_of
from deploy.front.checks.bounds import check_bounds
from deploy.front.routes.route import Route


@dataclass(frozen=True)
class TextRoute(Route):
    """A route whose answer is text, streamed or in one piece."""

    chat: bool = False

    def check(self, request: Any) -> None:
        """See ``Route.check``."""
        check_bounds(request)

    def asks(self, request: Any) -> Asked:
        """See ``Route.asks``."""
        return asked_of(request)

    def is_plain(self, request: Any) -> bool:
        """See ``Route.is_plain``."""
        return streams.is_plain(request, self.chat)


def routes(completion: Any, chat: Any) -> dict[str, Route]:
    """Return the routes by path. Either of vLLM's serving objects may be None: the model cannot do it."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    found = {
        "/v1/completions": TextRoute(CompletionRequest, completion, "create_completion"),
        "/v1/chat/completions": TextRoute(ChatCompletionRequest, chat, "create_chat_completion", chat=True),
    }
    return {path: route for path, route in found.items() if route.serving is not None}
