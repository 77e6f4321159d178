"""Takes a request over from vLLM's serving objects just before they would consume its outputs.

vLLM's serving objects do what this project does not do anew: render prompts and chat templates, tokenize, make sampling
parameters, check the model's name. For a plain stream ``create_*`` then returns a ``GenerateCall`` instead of a generator: the
call of the engine that it would have made, and the frame of the chunks. All private names of vLLM's serving objects that this
front relies on are in this file.
"""

import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from deploy.front.checks.grammars import Grammars
from deploy.front.context import CONTEXT, RequestContext
from deploy.front.streams import Frame
from deploy.replica.health_routes import GivenUp


@dataclass(slots=True)
class GenerateCall:
    """A call of ``AsyncLLM.generate`` that nobody has made yet: of a plain stream, once it has the frame of its chunks."""

    client: Any
    prompt: Any
    params: Any
    request_id: str
    options: dict[str, Any]
    grammars: Grammars | None = None
    frame: Frame | None = None

    async def start(self, context: RequestContext) -> Any:
        """Give the request to the engine; return vLLM's collector of its outputs.

        Raises:
            Refused: its grammar does not compile, or not in time, or its queue deadline is up.
            Exception: what vLLM says of a request that it refuses.
        """
        await context.hands_over(self.grammars, self.params)
        collector = await self.client.add_request(self.request_id, self.prompt, self.params, **self.options)
        context.submitted(self.prompt)
        return collector

    async def abort(self, collector: Any) -> None:
        """Make the engine forget the request."""
        await self.client.abort(collector.request_id, internal=True)


class EngineClientProxy:
    """Stands before vLLM's ``AsyncLLM`` for the serving objects: remembers the calls of plain streams, tries grammars."""

    def __init__(self, client: Any, grammars: Grammars | None = None) -> None:
        self._client = client
        self._grammars = grammars

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, **options: Any) -> AsyncIterator[Any]:
        context = CONTEXT.get()
        if context is None:
            return self._client.generate(prompt, sampling_params, request_id, **options)
        context.tokenized(prompt, sampling_params)
        # vLLM's is the client's word, which its key may not allow, and none for the beams of a search.
        options["priority"] = context.priority
        context.constrained |= getattr(sampling_params, "structured_outputs", None) is not None
        if context.plain:
            call = GenerateCall(self._client, prompt, sampling_params, request_id, options, self._grammars)
            context.calls.append(call)
        return self._observed(context, prompt, sampling_params, request_id, options)

    async def _observed(
        self, context: RequestContext, prompt: Any, params: Any, request_id: str, options: dict[str, Any]
    ) -> Any:
        try:
            await context.hands_over(self._grammars, params)
            context.submitted(prompt)
            async for output in self._client.generate(prompt, params, request_id, **options):
                # A stream's outputs bring what is new, an answer in one piece has one output.
                context.completion_tokens += sum(len(part.token_ids) for part in output.outputs)
                if output.finished:
                    context.finished_outputs.append(output)
                yield output
        except Exception as error:
            # vLLM's own around what was given up says nothing.
            failed = context.failed = error.__cause__ if isinstance(error.__cause__, GivenUp) else error
            raise failed from failed.__cause__


def stand_before_engine(servings: Iterable[Any], grammars: Grammars | None = None) -> None:
    """Put the front between vLLM's serving objects and the engine."""
    for serving in servings:
        if not isinstance(serving.engine_client, EngineClientProxy):
            serving.engine_client = EngineClientProxy(serving.engine_client, grammars)


def take_over(completion: Any, chat: Any) -> None:
    """Take plain streams over from serving objects that have the front before their engine. Either may be None."""
    if completion is not None:
        _take_over(completion, "completion_stream_generator", chat=False)
    if chat is not None:
        _take_over(chat, "chat_completion_stream_generator", chat=True)


def _plain_call() -> GenerateCall | None:
    """Return the call of the present request if this front streams its answer; else None."""
    context = CONTEXT.get()
    return context.calls[0] if context is not None and context.plain and len(context.calls) == 1 else None


def _take_over(serving: Any, method: str, *, chat: bool) -> None:
    original = getattr(serving, method)

    def stream(request: Any, *args: Any, **kwargs: Any) -> Any:
        call = None if chat and serving.parser_cls is not None else _plain_call()
        if call is None:
            return original(request, *args, **kwargs)
        if chat:
            _, request_id, model, *_ = args
            role, created = serving.get_chat_request_role(request), int(time.time())
        else:
            _, _, request_id, created, model, *_ = args
            role = ""
        options = request.stream_options
        call.frame = Frame.make(
            request_id,
            created,
            model,
            chat=chat,
            include_usage=bool(serving.enable_force_include_usage or (options and options.include_usage)),
            role=role,
            fingerprint=serving.system_fingerprint,
        )
        return call

    setattr(serving, method, stream)
