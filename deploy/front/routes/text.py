"""The routes: whose requests each takes, what they ask for, and who answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deploy.access.admission import Asked
from deploy.front.checks.asked import asked_of
from deploy.front.checks.requests import check_bounds
from deploy.front.replies import error_events
from nestedfp.vllm_plugin.scheduling.accounting import total, usage_of
from nestedfp.vllm_plugin.serving.disclosure import StreamDiscloser, Tokens


def tokens_of(counts: Any) -> Tokens | None:
    """Return the disclosure of the sequences that have ended; None: of none is it known."""
    return usage_of(total(counts.values())) if counts else None


@dataclass(frozen=True)
class Route:
    """A route whose answer is text, streamed or in one piece."""

    model: Any  # vLLM's request class
    serving: Any  # vLLM's serving object
    method: str  # of that
    chat: bool = False  # it answers messages

    def check(self, request: Any) -> None:
        """Check a request's bounds.

        Raises:
            Refused: 400 with the field, its bound and what came.
        """
        check_bounds(request)
        if self.chat and request.logprobs and request.top_logprobs is None:
            request.top_logprobs = 0  # vLLM would leave the tokens' own out as well

    def asks(self, request: Any) -> Asked:
        """Return what a request asks of the engine."""
        return asked_of(request)

    def is_plain(self, request: Any) -> bool:
        """Whether a streamed request asks for nothing but text: this front then writes the stream by itself."""
        options = request.stream_options
        plain = (
            request.stream
            and (request.n or 1) == 1
            and not request.echo
            and not request.return_token_ids
            and request.prompt_logprobs is None
            and not request.logprob_token_ids
            and not request.use_beam_search
            and not (options and options.continuous_usage_stats)
        )
        if not plain:
            return False
        if self.chat:
            return not (request.logprobs or request.tools or request.return_prompt_text)
        prompt = request.prompt
        one = isinstance(prompt, str) or (isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int))
        return one and request.logprobs is None

    def answer(self, result: Any) -> dict[str, Any]:
        """Return vLLM's answer in one piece as what becomes JSON."""
        return result.model_dump(mode="json")

    def events(self, result: Any) -> Any:
        """Return the server-sent events, as texts, of vLLM's generator of a streamed answer."""
        return result

    def discloser(self, request: Any, counts: Any, prompt_tokens: Callable[[], int]) -> Any:
        """Return what adds the disclosure to such an event, with a method ``event``; ``counts`` as ``collected`` gives them."""
        options = request.stream_options
        asked = bool(options and options.include_usage)
        return StreamDiscloser(lambda: tokens_of(counts), asked, prompt_tokens, lambda: bool(counts.whole))

    def last_words(self, body: bytes) -> bytes:
        """Return the event with which a broken stream ends."""
        return error_events(body)


def routes(state: Any) -> dict[str, Route]:
    """Return the routes by path, of those serving objects that vLLM has made for the model."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    from deploy.front.routes.responses import ResponsesRoute

    completion, chat = state.openai_serving_completion, state.openai_serving_chat
    found: dict[str, Route] = {
        "/v1/completions": Route(CompletionRequest, completion, "create_completion"),
        "/v1/chat/completions": Route(ChatCompletionRequest, chat, "create_chat_completion", chat=True),
        "/v1/responses": ResponsesRoute(ResponsesRequest, state.openai_serving_responses, "create_responses"),
    }
    return {path: route for path, route in found.items() if route.serving is not None}
