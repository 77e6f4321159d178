"""Takes a request over from vLLM's serving objects just before they would consume its outputs.

vLLM's serving objects do what this project does not do anew: render prompts and chat templates, tokenize, make sampling
parameters, check the model's name. For a plain stream ``create_*`` then returns a ``Handover`` instead of a generator: the
call of the engine that it would have made, and the frame of the chunks. All private names of vLLM's serving objects that this
front relies on are in this file.
"""

import functools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from deploy.access.admission import NoRoom, Place
from deploy.front.checks.grammars import Grammars
from deploy.front.deadline import QueueDeadline
from deploy.front.decoding.text_offsets import StreamOffsets, TextOffsets
from deploy.front.meter import Passage
from deploy.front.replies import Refused
from deploy.front.streams import Frame
from deploy.replica.health_routes import GivenUp
from nestedfp.vllm_plugin.scheduling.pin import PIN_KEY, AskedPrecision


@dataclass(slots=True)
class GenerateCall:
    """A call of ``AsyncLLM.generate`` that nobody has made yet."""

    client: Any
    prompt: Any
    params: Any
    request_id: str
    options: dict[str, Any]
    grammars: Grammars | None = None
    turn: "Turn | None" = None

    async def start(self) -> Any:
        """Give the request to the engine; return vLLM's collector of its outputs.

        Raises:
            Refused: its grammar does not compile, or not in time, or its queue deadline is up.
            Exception: what vLLM says of a request that it refuses.
        """
        if self.turn is not None:
            await self.turn.tries(self.grammars, self.params)
            self.turn.hands_over()
        return await self.client.add_request(self.request_id, self.prompt, self.params, **self.options)

    async def abort(self, collector: Any) -> None:
        """Make the engine forget the request."""
        await self.client.abort(collector.request_id, internal=True)


@dataclass(slots=True)
class Handover:
    """A plain stream, ready to be written."""

    call: GenerateCall
    frame: Frame


class Turn:
    """What the serving objects and the front say to each other about the request of the present task.

    Args:
        plain: it is streamed by this front.
        passage: of the request.
        place: in the replica; None: nobody counts it.
        deadline: of its wait for the engine; None: it has none.
        priority: among the engine's requests: the lower, the earlier.
        refusal: makes of a want of room what the client hears.
    """

    def __init__(
        self,
        plain: bool,
        passage: Passage,
        place: Place | None = None,
        deadline: QueueDeadline | None = None,
        priority: int = 0,
        refusal: Callable[[NoRoom], Refused] = lambda no_room: Refused(429, str(no_room)),
    ) -> None:
        self.plain = plain
        self.passage = passage
        self.priority = priority
        self._place, self._deadline, self._refusal = place, deadline, refusal
        self.body_bytes = 0
        self.estimated_tokens = 0  # of its prompts, before they were tokenized
        self.given: dict[str, Any] = {}  # the fields that the request has, by name
        self.calls: list[GenerateCall] = []
        self.accepted = False  # the engine has computed a token of it
        self.refused: Refused | None = None  # before the engine heard of it; vLLM's streams make another error of it
        self.failed: Exception | None = (
            None  # what the engine raised; vLLM's streams make an event of it that says less
        )
        self.constrained = False  # by a grammar, which may turn out to have no way on
        self.finished: list[Any] = []  # the outputs that ended a sequence, where vLLM's own code consumes them

    def tokenized(self, prompt: Any, params: Any) -> None:
        """A prompt has become tokens, and the engine is to be called with it.

        Raises:
            Refused: there is no room for what the request turns out to be.
        """
        most = getattr(params, "max_tokens", 0)  # vectors have no answer to count
        if self._place is None or most is None:
            return
        try:
            self._place.settle(prompt_tokens_of(prompt), most)
        except NoRoom as no_room:
            self.passage.read_tokens = 0  # nothing came of it
            self.refused = self._refusal(no_room)
            raise self.refused from None

    async def tries(self, grammars: Grammars | None, params: Any) -> None:
        """Have the grammar of a prompt tried, where there is one, for as long as the request may wait for the engine.

        Raises:
            Refused: it is none that the engine can use, or nobody could find out in time.
        """
        if grammars is None:
            return
        try:
            await grammars.check(params, None if self._deadline is None else self._deadline.left_s)
        except Refused as refusal:
            self.refused = refusal
            raise

    def hands_over(self) -> None:
        """The engine is about to be given a prompt.

        Raises:
            Refused: the request's queue deadline is up.
        """
        if self._deadline is not None:
            try:
                self._deadline.hand_over(self.passage.counts)
            except Refused as refusal:
                self.refused = refusal
                raise

    def first_token(self) -> None:
        """The engine has computed a token, or a prompt's vector."""
        self.accepted = True
        if self._deadline is not None:
            self._deadline.begun()

    def ended(self) -> None:
        """The request has left."""
        if self._deadline is not None:
            self._deadline.close()

    @property
    def withdrawn(self) -> Refused | None:
        """Why the request was taken out of the engine before it had begun; None: it was not."""
        return None if self._deadline is None else self._deadline.refused


TURN: ContextVar[Turn | None] = ContextVar("nestedfp_turn", default=None)


class EngineClientProxy:
    """Stands before vLLM's ``AsyncLLM`` for the serving objects: remembers the calls of plain streams, tries grammars."""

    def __init__(self, client: Any, grammars: Grammars | None = None) -> None:
        self._client = client
        self._grammars = grammars

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, **options: Any) -> AsyncIterator[Any]:
        turn = TURN.get()
        if turn is None:
            return self._client.generate(prompt, sampling_params, request_id, **options)
        turn.tokenized(prompt, sampling_params)
        # vLLM's is the client's word, which its key may not allow, and none for the beams of a search.
        options["priority"] = turn.priority
        turn.constrained = turn.constrained or getattr(sampling_params, "structured_outputs", None) is not None
        if turn.plain:
            call = GenerateCall(self._client, prompt, sampling_params, request_id, options, self._grammars, turn)
            turn.calls.append(call)
        return self._observed(turn, prompt, sampling_params, request_id, options)

    async def encode(self, prompt: Any, pooling_params: Any, request_id: str, **options: Any) -> Any:
        """As ``AsyncLLM.encode``: yields the one output of a prompt that becomes a vector."""
        turn = TURN.get()
        if turn is not None:
            turn.tokenized(prompt, pooling_params)
            options["priority"] = turn.priority
            if (asked := turn.passage.asked) is not AskedPrecision.AUTO:
                # vLLM's serving objects hand on what they know, and a precision is none of it.
                pooling_params.extra_kwargs = {**(pooling_params.extra_kwargs or {}), PIN_KEY: asked.value}
            turn.hands_over()
            turn.passage.submitted()
            turn.passage.prompt_tokens += prompt_tokens_of(prompt)
        try:
            async for output in self._client.encode(prompt, pooling_params, request_id, **options):
                if turn is not None:
                    if (withdrawn := turn.withdrawn) is not None:
                        turn.refused = withdrawn
                        raise withdrawn
                    turn.first_token()
                yield output
        except Exception as error:
            if isinstance(error.__cause__, GivenUp):
                raise error.__cause__ from None
            raise

    async def _observed(self, turn: Turn, prompt: Any, params: Any, request_id: str, options: dict[str, Any]) -> Any:
        await turn.tries(self._grammars, params)
        turn.hands_over()
        turn.passage.submitted()
        turn.passage.prompt_tokens += prompt_tokens_of(prompt)
        try:
            async for output in self._client.generate(prompt, params, request_id, **options):
                # A stream's outputs bring what is new, an answer in one piece has one output.
                new_tokens = sum(len(part.token_ids) for part in getattr(output, "outputs", ()))
                turn.passage.completion_tokens += new_tokens
                if new_tokens and not turn.accepted:
                    turn.first_token()
                if output.finished:
                    if (withdrawn := turn.withdrawn) is not None:
                        turn.refused = withdrawn
                        raise withdrawn
                    turn.finished.append(output)
                yield output
        except Exception as error:
            if isinstance(error.__cause__, GivenUp):
                turn.failed = error.__cause__
                raise error.__cause__ from None  # vLLM's own around it says nothing
            turn.failed = error
            raise


def prompt_tokens_of(prompt: Any) -> int:
    """Return how many tokens a prompt has, as vLLM's serving objects give it to the engine; 0 where it does not say."""
    ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else None
    return len(ids or ())


def stand_before_engine(servings: Iterable[Any], grammars: Grammars | None = None) -> None:
    """Put the front between vLLM's serving objects and the engine."""
    for serving in servings:
        if not isinstance(serving.engine_client, EngineClientProxy):
            serving.engine_client = EngineClientProxy(serving.engine_client, grammars)
            if (search := getattr(serving, "beam_search", None)) is not None:
                serving.beam_search = functools.partial(_searched, search)


def _searched(search: Any, *args: Any, params: Any, **kwargs: Any) -> Any:
    """As vLLM's ``beam_search``, which answers a request for no tokens with nothing."""
    from vllm.exceptions import VLLMValidationError

    if params.max_tokens < 1:
        raise VLLMValidationError(f"max_tokens must be at least 1, got {params.max_tokens}.", parameter="max_tokens")
    return search(*args, params=params, **kwargs)


def take_over(completion: Any, chat: Any) -> None:
    """Take plain streams over from serving objects that have the front before their engine. Either may be None."""
    if completion is not None:
        _take_over_completion(completion)
    if chat is not None:
        _take_over_chat(chat)


def _take_over_completion(serving: Any) -> None:
    original = serving.completion_stream_generator

    def stream(
        request: Any, inputs: Any, results: Any, request_id: str, created: int, model: str, *args: Any, **kwargs: Any
    ) -> Any:
        turn = TURN.get()
        if turn is None or not turn.plain or len(turn.calls) != 1:
            if request.logprobs is None:
                return original(request, inputs, results, request_id, created, model, *args, **kwargs)
            texts = [serving._extract_prompt_text(each) for each in inputs]
            offsets = StreamOffsets(_fast(serving), request, texts)
            watched = offsets.watch(results)
            return offsets.corrected(original(request, inputs, watched, request_id, created, model, *args, **kwargs))
        frame = Frame.make(
            request_id,
            created,
            model,
            chat=False,
            include_usage=_wants_usage(request, serving),
            fingerprint=serving.system_fingerprint,
        )
        return Handover(turn.calls[0], frame)

    answered = serving.request_output_to_completion_response

    def answer(results: list[Any], request: Any, *args: Any, **kwargs: Any) -> Any:
        response = answered(results, request, *args, **kwargs)
        sequences = [(result, output) for result in results for output in result.outputs]
        for choice, (result, output) in zip(response.choices, sequences, strict=True):
            if choice.logprobs is not None and (tokenizer := _fast(serving)) is not None:
                echoed = result.prompt if request.echo else None
                offsets = TextOffsets(tokenizer, result.prompt_token_ids, echoed, request.skip_special_tokens)
                found = {"text_offset": offsets.next(len(choice.logprobs.tokens), output.token_ids)}
                choice.logprobs = choice.logprobs.model_copy(update=found)
        return response

    serving.completion_stream_generator = stream
    serving.request_output_to_completion_response = answer


def _fast(serving: Any) -> Any:
    """Return the model's tokenizer of the library ``tokenizers``; None: it is of another kind."""
    return getattr(serving.renderer.tokenizer, "_tokenizer", None)


def _take_over_chat(serving: Any) -> None:
    original = serving.chat_completion_stream_generator

    def stream(request: Any, results: Any, request_id: str, model: str, *args: Any, **kwargs: Any) -> Any:
        turn = TURN.get()
        if turn is None or not turn.plain or len(turn.calls) != 1 or serving.parser_cls is not None:
            return original(request, results, request_id, model, *args, **kwargs)
        frame = Frame.make(
            request_id,
            int(time.time()),
            model,
            chat=True,
            include_usage=_wants_usage(request, serving),
            role=serving.get_chat_request_role(request),
            fingerprint=serving.system_fingerprint,
        )
        return Handover(turn.calls[0], frame)

    serving.chat_completion_stream_generator = stream


def _wants_usage(request: Any, serving: Any) -> bool:
    options = request.stream_options
    return bool(serving.enable_force_include_usage or (options and options.include_usage))
