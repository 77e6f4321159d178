"""The routes of a model that makes vectors instead of text: embeddings, scores, classes.

Which of them there are is vLLM's to say, by what the model can do. Its serving objects answer with a whole HTTP response; what is
done to it here is the disclosure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from deploy.access.admission import Asked
from deploy.front.checks.asked import asked_of_inputs
from deploy.front.checks.bounds import at_most, check_extra, check_numbers
from deploy.front.replies import JSON
from deploy.front.routes.route import Route
from nestedfp.vllm_plugin.serving.disclosure import Tokens, disclose

MOST_INPUTS = 2048  # of one request, as OpenAI has it
# With encoding_format "bytes", whose header describes every vector: HAProxy takes 16 KiB of headers.
MOST_BYTES_INPUTS = 32
NUMBERS = ("dimensions", "truncate_prompt_tokens", "top_n", "max_tokens_per_query", "max_tokens_per_doc", "priority")
PRECISION_HEADER = b"x-nestedfp-precision-tokens"  # the disclosure beside an answer that is no JSON
Inputs = Callable[[Any], list[Any]]
Header = tuple[bytes, bytes]


def of_embedding(request: Any) -> list[Any]:
    """Return what becomes the prompts of an embedding, pooling or classification request: texts, token ids, chats."""
    fields = type(request).model_fields
    if "messages" in fields:  # one chat or several
        messages = request.messages
        return list(messages) if messages and isinstance(messages[0], list) else [messages]
    if "input" not in fields:  # of a plugin, which alone knows what it makes of it
        return [""]
    given = request.input
    return given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]


def of_score(request: Any) -> list[Any]:
    """Return the texts of a score request; vLLM computes each, or pairs of them."""
    return [*_listed(request.data_1), *_listed(request.data_2)]


def of_rerank(request: Any) -> list[Any]:
    """Return the texts of a rerank request."""
    return [request.query, *_listed(request.documents)]


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


@dataclass(frozen=True)
class VectorRoute(Route):
    """A route whose answer is vectors.

    Attributes:
        inputs: returns what becomes the prompts of a request.
    """

    inputs: Inputs = of_embedding

    def check(self, request: Any) -> None:
        """See ``Route.check``."""
        count = len(self.inputs(request))
        at_most("input", count, MOST_INPUTS, "inputs")
        if getattr(request, "encoding_format", None) == "bytes":
            at_most("input with encoding_format 'bytes'", count, MOST_BYTES_INPUTS, "inputs")
        check_numbers(request, NUMBERS)
        check_extra(request)

    def asks(self, request: Any) -> Asked:
        """See ``Route.asks``."""
        return asked_of_inputs(self.inputs(request))


async def disclosed(response: Response, tokens: Tokens) -> tuple[bytes, Header, list[Header]]:
    """Return the body, the content type and the further headers of vLLM's answer with the precision of its tokens.

    In an object it stands in ``usage``, as in answers of text; with an answer of bytes it is a header.
    """
    if isinstance(response, StreamingResponse):
        body = b"".join([bytes(part) async for part in response.body_iterator])  # type: ignore[arg-type]
    else:
        body = bytes(response.body)
    if response.media_type != "application/json":
        headers = [
            (name, value) for name, value in response.raw_headers if name not in (b"content-length", b"content-type")
        ]
        kind = (b"content-type", str(response.media_type).encode())
        return body, kind, [*headers, (PRECISION_HEADER, msgspec.json.encode(tokens))]
    answer = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    usage = msgspec.json.decode(answer["usage"]) if "usage" in answer else None
    answer["usage"] = msgspec.Raw(msgspec.json.encode(disclose(usage, tokens)))
    return msgspec.json.encode(answer), JSON, []


def routes(state: Any) -> dict[str, Route]:
    """Return the routes by path, of those serving objects that vLLM has made for the model.

    Args:
        state: of vLLM's application.
    """
    from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
    from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest

    kinds: list[tuple[str, Any, Inputs, tuple[str, ...]]] = [
        ("serving_embedding", EmbeddingRequest, of_embedding, ("/v1/embeddings",)),
        ("serving_pooling", PoolingRequest, of_embedding, ("/pooling",)),
        ("serving_classification", ClassificationRequest, of_embedding, ("/classify",)),
        ("serving_scores", ScoreRequest, of_score, ("/score", "/v1/score")),
        ("serving_scores", RerankRequest, of_rerank, ("/rerank", "/v1/rerank", "/v2/rerank")),
    ]
    return {
        path: VectorRoute(model, serving, inputs=inputs)
        for name, model, inputs, paths in kinds
        if (serving := getattr(state, name, None)) is not None
        for path in paths
    }
