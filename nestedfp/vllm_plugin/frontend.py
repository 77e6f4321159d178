"""The front end's part: checks each request before the engine sees it, and hands each response its token counts.

``install`` wraps methods of vLLM's front end, all of which run in its process.

Counts: the engine sends the counts of a sequence with the output that finishes it, or with every output where the front
end may end the request itself (stop strings). Who adds requests to the engine within ``with collected() as counts:`` finds an
entry for each sequence in it that has finished, and none for one that was aborted. ``usage_of(total(counts.values()))`` makes
``usage.precision_tokens`` of them. Nothing stays behind when a request is aborted or nobody asks.

With ``n > 1`` each of the n sequences is a request of its own in the engine, and all are added up, prompts too: prompt counts
add up to n times the prompt's length. A sequence that read what its sibling computed says ``cached``, one that computed the
prompt again says so.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from nestedfp.hooks import around
from nestedfp.vllm_plugin.options import KV_IS_FP8, rounds_kv
from nestedfp.vllm_plugin.scheduling.accounting import COUNTS_KEY, TokenCounts, total, usage_of
from nestedfp.vllm_plugin.scheduling.pin import PIN_KEY, AskedPrecision, asked_of

__all__ = ["Collected", "check_pin", "check_token_ids", "collected", "install", "total", "usage_of"]

_SALT = secrets.token_hex(16)  # which no client can know


class Collected(dict[str, TokenCounts]):
    """The counts of ended sequences, by sequence.

    Attributes:
        ids: of all that were added to the engine.
        asked: what the request asks for beside its parameters; None: nothing.
        prompt_tokens: of the prompts, each counted once, whatever ``n``.
        output_tokens: of all sequences that have come from the engine, whether or not anybody was given them.
    """

    def __init__(self, asked: AskedPrecision | None = None) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.asked = asked
        self.prompt_tokens = 0
        self.output_tokens = 0

    @property
    def whole(self) -> bool:
        """Whether all that were added have ended."""
        return all(each in self for each in self.ids)

    def added(self, request_id: str, prompt_tokens: int) -> None:
        """The engine has a sequence; 0 prompt tokens: another sequence has counted them."""
        self.ids.append(request_id)
        self.prompt_tokens += prompt_tokens


_collecting: ContextVar[Collected | None] = ContextVar("nestedfp_collecting", default=None)


@contextmanager
def collected(asked: AskedPrecision | None = None) -> Iterator[Collected]:
    """Collect the counts, by sequence, of every request that this context, or a task started in it, adds to the engine.

    Args:
        asked: what those requests ask for beside their parameters; None: nothing.
    """
    counts = Collected(asked)
    before = _collecting.get()
    _collecting.set(counts)
    try:
        yield counts
    finally:
        _collecting.set(before)  # no token: an asynchronous generator may be closed in another context


def check_pin(params: Any, is_inexact: bool = False) -> bool:
    """Return whether a request's ``SamplingParams`` or ``PoolingParams`` pin it.

    Args:
        is_inexact: the engine's KV cache is FP8.

    Raises:
        VLLMValidationError: for a wrong pin, or one that the engine cannot keep; answered as HTTP 400.
    """
    from vllm.exceptions import VLLMValidationError

    try:
        pinned = asked_of(params) is AskedPrecision.EXACT
        if pinned and is_inexact:
            raise ValueError(f"no answer can be exact: {KV_IS_FP8}; ask for 'fast' or 'auto'")
    except ValueError as error:
        raise VLLMValidationError(str(error), parameter=f"vllm_xargs.{PIN_KEY}") from None
    return pinned


def check_token_ids(request: Any, vocabulary_size: int) -> None:
    """Refuse a request whose prompt or bad words hold a token id that the model has no embedding for: it ends the engine.

    vLLM lets an id pass that the tokenizer knows and the model does not. Positions that an image or other input fills in
    are not looked up, so their placeholders may be any id.

    Args:
        request: an ``EngineCoreRequest``.

    Raises:
        VLLMValidationError: answered as HTTP 400.
    """
    from vllm.exceptions import VLLMValidationError

    def known(ids: Any) -> bool:
        return not ids or (min(ids) >= 0 and max(ids) < vocabulary_size)

    ids, filled = request.prompt_token_ids or (), request.prompt_is_token_ids
    if not known(ids):
        looked_up = [True] * len(ids) if filled is None else list(filled)
        for feature in request.mm_features or ():
            start, length = feature.mm_position.offset, feature.mm_position.length
            looked_up[start : start + length] = [False] * length
        wrong = next((i for i, token in enumerate(ids) if looked_up[i] and not 0 <= token < vocabulary_size), None)
        if wrong is not None:
            raise VLLMValidationError(
                f"token id {ids[wrong]} at position {wrong} of the prompt is out of the model's vocabulary; expected 0 to "
                f"{vocabulary_size - 1}",
                parameter="prompt",
                value=ids[wrong],
            )
    for word in getattr(request.sampling_params, "_bad_words_token_ids", None) or ():
        if not known(word):
            raise VLLMValidationError(
                f"bad_words: a word becomes token ids {word}, which the model's vocabulary of {vocabulary_size} does not hold",
                parameter="bad_words",
            )


def keep_encodings_apart(request: Any) -> None:
    """Give what an encoder makes of a pinned request's images names of its own: a fast step may have encoded them for others.

    The names are part of the hashes of KV blocks, too. ``request``: an ``EngineCoreRequest``.
    """
    request.mm_features = request.mm_features and [
        replace(each, identifier=f"{each.identifier}|{_SALT}", mm_hash=each.mm_hash or each.identifier)
        for each in request.mm_features
    ]


def install() -> None:
    """Wrap vLLM's methods. Idempotent."""
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.output_processor import OutputProcessor

    around.put(InputProcessor, "process_inputs", _checked)
    around.put(OutputProcessor, "add_request", _added)
    around.put(OutputProcessor, "process_outputs", _received)


def _checked(
    process_inputs: Any, processor: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
) -> Any:
    from vllm.exceptions import VLLMValidationError

    _ask(params)
    pinned = check_pin(params, rounds_kv(processor.vllm_config))
    request = process_inputs(processor, request_id, prompt, params, *args, **kwargs)
    if request.resumable:
        raise VLLMValidationError("nestedfp serves no streaming sessions; send each input as a request of its own")
    check_token_ids(request, processor.model_config.get_vocab_size())
    _take(processor, request.lora_request)
    if pinned:
        keep_encodings_apart(request)
    return request


def _added(
    add_request: Any,
    processor: Any,
    request: Any,
    prompt: Any,
    parent_req: Any = None,
    request_index: int = 0,
    *args: Any,
    **kwargs: Any,
) -> None:
    add_request(processor, request, prompt, parent_req, request_index, *args, **kwargs)
    state, collecting = processor.request_states.get(request.request_id), _collecting.get()
    if state is not None and collecting is not None:
        state.nestedfp_collecting = collecting
        tokens = request.prompt_embeds if request.prompt_token_ids is None else request.prompt_token_ids
        collecting.added(state.request_id, 0 if request_index else len(tokens))


def _received(process_outputs: Any, processor: Any, engine_core_outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
    for output in engine_core_outputs:
        state = processor.request_states.get(output.request_id)
        if (collecting := getattr(state, "nestedfp_collecting", None)) is not None:
            collecting.output_tokens += len(output.new_token_ids)
        params = output.kv_transfer_params
        if params and (counts := params.pop(COUNTS_KEY, None)) is not None:
            output.kv_transfer_params = params or None
            if collecting is not None:
                collecting[state.request_id] = TokenCounts(*counts)
    return process_outputs(processor, engine_core_outputs, *args, **kwargs)


def _take(processor: Any, adapter: Any) -> None:
    """Refuse an adapter that would end the engine, or of which it would leave something out; None: there is none."""
    if adapter is None:
        return
    from vllm.exceptions import VLLMValidationError

    from nestedfp.vllm_plugin.lora.adapters import Adapters

    if not hasattr(processor, "nestedfp_adapters"):
        processor.nestedfp_adapters = Adapters(processor.vllm_config)
    try:
        processor.nestedfp_adapters.take(adapter)
    except ValueError as error:
        raise VLLMValidationError(str(error), parameter="lora_request") from None


def _ask(params: Any) -> None:
    """Put what a request asks for beside its ``SamplingParams`` or ``PoolingParams`` into them."""
    collecting = _collecting.get()
    if collecting is not None and (asked := collecting.asked) is not None:
        name = "extra_args" if hasattr(params, "extra_args") else "extra_kwargs"
        setattr(params, name, {**(getattr(params, name) or {}), PIN_KEY: asked.value})
