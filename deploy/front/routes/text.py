"""The routes of a model that makes text: completions, chats, responses and messages."""

from dataclasses import dataclass
from typing import Any

from deploy.access.admission import Asked
from deploy.front import streams
from deploy.front.checks.asked import asked_of
from deploy.front.effects.combinations import check_text
from deploy.front.routes.messages import MessagesRoute
from deploy.front.routes.responses import ResponsesRoute
from deploy.front.routes.route import Route


@dataclass(frozen=True)
class TextRoute(Route):
    """A route whose answer is text, streamed or in one piece."""

    chat: bool = False

    def check(self, request: Any) -> None:
        """See ``Route.check``."""
        check_text(request)
        if self.chat and request.logprobs and request.top_logprobs is None:
            request.top_logprobs = 0  # vLLM would leave the tokens' own out as well

    def asks(self, request: Any) -> Asked:
        """See ``Route.asks``."""
        return asked_of(request)

    def is_plain(self, request: Any) -> bool:
        """See ``Route.is_plain``."""
        return streams.is_plain(request, self.chat)


def routes(state: Any) -> dict[str, Route]:
    """Return the routes by path, of those serving objects that vLLM has made for the model.

    Args:
        state: of vLLM's application.
    """
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    class MessagesRequest(AnthropicMessagesRequest, extra="allow"):
        """vLLM's, which forgets the fields that it does not know."""

    completion, chat = state.openai_serving_completion, state.openai_serving_chat
    found: dict[str, Route] = {
        "/v1/completions": TextRoute(CompletionRequest, completion, "create_completion"),
        "/v1/chat/completions": TextRoute(ChatCompletionRequest, chat, "create_chat_completion", chat=True),
        "/v1/responses": ResponsesRoute(ResponsesRequest, state.openai_serving_responses),
        "/v1/messages": MessagesRoute(MessagesRequest, state.anthropic_serving_messages),
    }
    return {path: route for path, route in found.items() if route.serving is not None}
