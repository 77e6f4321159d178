"""The routes that use the tokenizer alone. They need no engine, and share with the requests that do what stands before it: the
tokenizer's thread and the event loop. So they are admitted, bounded and charged as those are.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from deploy.access.admission import Asked
from deploy.front.checks.asked import asked_of_tokenizer
from deploy.front.checks.requests import check_extra
from deploy.front.context import CONTEXT
from deploy.front.routes.text import Route


class _Charged:
    """vLLM's serving object of these routes, whose requests count what it read."""

    def __init__(self, serving: Any) -> None:
        self._serving = serving

    async def create_tokenize(self, request: Any, raw: Any) -> Any:
        answer = await self._serving.create_tokenize(request, raw)
        _read(len(getattr(answer, "tokens", ())))
        return answer

    async def create_detokenize(self, request: Any, raw: Any) -> Any:
        answer = await self._serving.create_detokenize(request, raw)
        _read(len(request.tokens))
        return answer


def _read(tokens: int) -> None:
    if (context := CONTEXT.get()) is not None:
        context.prompt_tokens = tokens


@dataclass(frozen=True)
class TokensRoute(Route):
    """A route from texts to tokens, or back."""

    computes: ClassVar[bool] = False

    def check(self, request: Any) -> None:
        """See ``Route.check``."""
        check_extra(request)

    def asks(self, request: Any) -> Asked:
        """See ``Route.asks``."""
        (given,) = {"prompt", "messages", "tokens"} & set(type(request).model_fields)
        return asked_of_tokenizer(getattr(request, given))


def routes(serving: Any) -> dict[str, Route]:
    """Return the routes by path.

    Args:
        serving: vLLM's ``ServingTokenization``.
    """
    from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

    charged = _Charged(serving)
    return {
        "/tokenize": TokensRoute(TokenizeRequest, charged, "create_tokenize"),
        "/detokenize": TokensRoute(DetokenizeRequest, charged, "create_detokenize"),
    }
