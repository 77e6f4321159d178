"""Plain streams: their server-sent events, and the short way of their tokens from the engine's outputs to the sockets.

vLLM's own generators build and validate two objects for every chunk, and wake the task of its request, which then writes it. Here
the part of a chunk that never changes is made once (``Frame``), and a stream that has begun is tapped: its tokens become text where
the outputs are taken apart, and one callback of the event loop writes for all streams what came in. Whatever is more than the text
of a sequence that goes on (its end, a preemption, an error) goes vLLM's way to the stream's own task, after what was tapped before
it. The events say what vLLM's say, field by field; tests hold the two against each other. Whatever needs more than text goes
through vLLM's generator: several sequences, log-probabilities, echo, token ids, tools, reasoning.
"""

import asyncio
import functools
import time
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from deploy.front.context import RequestContext
from deploy.front.replies import DONE, GAP
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts, usage_of
from nestedfp.vllm_plugin.serving.disclosure import disclose

encode = msgspec.json.Encoder().encode
MOST_PUT_OFF = 4  # times in a row that a write waits for outputs that are here
Send = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]  # ASGI's send


@dataclass(frozen=True, slots=True)
class Frame:
    """The parts of a stream's chunks that never change."""

    first: bytes  # sent before the first text; empty for completions
    before: bytes  # with ``after`` around the text of a chunk
    after: bytes
    head: bytes  # before the choices; the last chunk is written field by field
    chat: bool  # deltas of a message instead of text
    include_usage: bool  # the client asked for a chunk with the usage at the end
    fingerprint: str | None

    @classmethod
    def make(
        cls,
        request_id: str,
        created: int,
        model: str,
        *,
        chat: bool,
        include_usage: bool,
        role: str = "assistant",
        fingerprint: str | None = None,
    ) -> "Frame":
        """Prepare a stream's chunks."""
        kind = b"chat.completion.chunk" if chat else b"text_completion"
        head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            encode(request_id),
            kind,
            created,
            encode(model),
        )
        if chat:
            before = head + b'{"index":0,"delta":{"content":'
            after = b'},"logprobs":null,"finish_reason":null,"token_ids":null}]}' + GAP
            first = (
                head
                + (
                    b'{"index":0,"delta":{"role":%b,"content":""},"logprobs":null,"finish_reason":null}],'
                    b'"prompt_token_ids":null,"prompt_text":null}' % encode(role)
                )
                + GAP
            )
        else:
            before = head + b'{"index":0,"text":'
            after = (
                b',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}'
                + GAP
            )
            first = b""
        return cls(first, before, after, head, chat, include_usage, fingerprint)

    def text(self, text: str) -> bytes:
        """Return the event of one delta."""
        return self.before + encode(text) + self.after

    def last(
        self,
        text: str,
        finish_reason: str,
        stop_reason: int | str | None,
        prompt_tokens: int,
        completion_tokens: int,
        counts: TokenCounts | None,
    ) -> bytes:
        """Return the events that end a stream: the last delta, the usage, the end mark.

        A client that asked for the usage finds it in a chunk of its own, as OpenAI defines it; any other in the chunk with
        the finish reason, so that no chunk without choices is added for clients that do not expect one.
        """
        usage: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
        }
        told = disclose(usage, None if counts is None else usage_of(counts))
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice |= {"delta": {"content": text}}
        else:
            choice |= {"text": text}
        choice |= {"logprobs": None, "finish_reason": finish_reason, "stop_reason": stop_reason}
        choice |= {"token_ids": None} if self.chat else {"prompt_token_ids": None, "token_ids": None}
        print_ = b'"system_fingerprint":%b,' % encode(self.fingerprint) if self.fingerprint else b""
        if not self.include_usage:
            return b'%b%b],%b"usage":%b}\n\n%b' % (self.head, encode(choice), print_, encode(told), DONE)
        tail = self.head + b"]," + print_ + b'"usage":' + encode(told) + b"}" + GAP
        return self.head + encode(choice) + b"]}" + GAP + tail + DONE


@dataclass(eq=False)
class Taps:
    """All tapped streams of a replica."""

    states: dict[str, Any]  # vLLM's ``OutputProcessor.request_states``, by the engine's id of the request
    more: Callable[[], bool] = lambda: False  # whether further outputs of the engine are here already
    # Is told for each write how many seconds ago the engine made the oldest of what it writes.
    delivered: Callable[[float], None] = lambda took_s: None
    _made_s: float | None = None  # when the engine made what has waited longest
    _unwritten: list["Tap"] = field(default_factory=list)
    _put_off: int = 0  # times

    def open(self, collector: Any, frame: Frame, context: RequestContext, send: Send) -> "Tap | None":
        """Tap a stream whose first bytes are written. None: its text depends on more than the next token."""
        state = self.states.get(collector.request_id)
        if state is None or state.parent_req is not None or state.streaming_input or state.stream_interval != 1:
            return None
        if not hasattr(state.detokenizer, "decode_next") or state.detokenizer.stop:
            return None
        tap = Tap(self, state, collector, frame, context, send)
        state.nestedfp_tap = tap
        return tap

    def unwritten(self, tap: "Tap", made_s: float | None) -> None:
        """A tap has got tokens. They are written once the outputs at hand have been taken apart.

        The engine made them at ``made_s`` of ``time.monotonic``, which all processes of a machine share.
        """
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._write)
            self._made_s = made_s
        self._unwritten.append(tap)

    def _write(self) -> None:
        # Where the loop lags, outputs of several steps are here: a write for all of them costs what one for each of them does.
        if self._put_off < MOST_PUT_OFF and self.more():
            self._put_off += 1
            asyncio.get_running_loop().call_soon(self._write)
            return
        self._put_off = 0
        taps, self._unwritten = self._unwritten, []
        for tap in taps:
            tap.write()
        if self._made_s is not None:
            self.delivered(time.monotonic() - self._made_s)


@dataclass(slots=True, eq=False)
class Tap:
    """One tapped stream."""

    _taps: Taps
    _state: Any
    _collector: Any
    _frame: Frame
    _context: RequestContext
    _send: Send
    _idle: bool = False  # the stream's task waits for an output
    _writing: asyncio.Task[None] | None = None  # a write that waits for the client to read
    _text: str = ""  # not yet written
    _tokens: int = 0

    def takes(self, output: Any, made_s: float | None) -> bool:
        """Take an ``EngineCoreOutput``, made then, if it is nothing but the next tokens; else it is vLLM's to handle."""
        if (
            not self._idle
            or self._writing is not None
            or self._collector.output is not None
            or output.finish_reason is not None
            or output.events is not None
            or output.kv_transfer_params is not None
            or output.ec_transfer_params is not None
            or output.prefill_stats is not None
            or output.new_logprobs is not None
            or output.new_prompt_logprobs_tensors is not None
            or output.pooling_output is not None
            or output.routed_experts is not None
            or output.new_sampling_mask is not None
            or output.spec_decode_metrics is not None
        ):
            return False
        detokenizer = self._state.detokenizer
        ids = output.new_token_ids
        for token_id in ids:
            detokenizer.token_ids.append(token_id)
            text = detokenizer.decode_next(token_id)
            detokenizer.output_text += text
            detokenizer._last_output_text_offset += len(text)
            self._text += text
        if not self._tokens and ids:
            self._taps.unwritten(self, made_s)
        self._tokens += len(ids)
        self._context.completion_tokens += len(ids)
        self._context.counts.output_tokens += len(ids)
        return True

    def write(self) -> None:
        """Write what has been taken, without a task unless the client does not read."""
        text, tokens = self._taken()
        if not tokens:
            return  # the stream's task was faster
        context = self._context
        context.writing()
        try:
            sending = self._send(self._event(text))
            waits_for = sending.send(None)
        except StopIteration:
            context.wrote(tokens)
        except (Exception, asyncio.CancelledError) as error:  # this stream's alone: others wait to be written
            self._collector.put(error if isinstance(error, Exception) else RuntimeError("the write was cancelled"))
        else:
            self._writing = asyncio.ensure_future(self._written(sending, waits_for, tokens))

    async def _written(self, sending: Coroutine[Any, Any, None], waits_for: Any, tokens: int) -> None:
        try:
            await rest_of(sending, waits_for)
            self._context.wrote(tokens)
        except Exception as error:
            self._collector.put(error)
        finally:
            self._writing = None

    def _event(self, text: str) -> dict[str, Any]:
        return {"type": "http.response.body", "body": self._frame.text(text), "more_body": True}

    def _taken(self) -> tuple[str, int]:
        taken = self._text, self._tokens
        self._text, self._tokens = "", 0
        return taken

    async def get(self) -> Any:
        """Return the stream's next output that was not tapped, once all that came before it is written.

        Raises:
            Exception: what vLLM says of a request that failed.
        """
        self._idle = True
        try:
            output = await self._collector.get()
        except Exception:
            await self._settle()
            raise
        finally:
            self._idle = False
        await self._settle()
        return output

    async def _settle(self) -> None:
        self._idle = False
        if self._writing is not None:
            await asyncio.wait({self._writing})
            if isinstance(self._collector.output, Exception):
                self._collector.get_nowait()  # raises it: what comes after a failed write must not look whole
        text, tokens = self._taken()
        if tokens:
            self._context.writing()
            await self._send(self._event(text))
            self._context.wrote(tokens)

    def close(self) -> None:
        """The stream has ended, or its client has left."""
        self._state.nestedfp_tap = None
        self._text, self._tokens = "", 0
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()


@types.coroutine
def rest_of(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Go on, in a task, with a coroutine that was begun outside of one and waits for a future."""
    while True:
        try:
            value = yield waits_for
        except BaseException as error:
            step: Callable[[], Any] = functools.partial(coroutine.throw, error)
        else:
            step = functools.partial(coroutine.send, value)
        try:
            waits_for = step()
        except StopIteration:
            return


def taps_of(client: Any, delivered: Callable[[float], None]) -> Taps:
    """Return the taps of vLLM's ``AsyncLLM``; ``delivered`` as in ``Taps``."""
    queue = client.engine_core.outputs_queue
    return Taps(client.output_processor.request_states, lambda: not queue.empty(), delivered)


def install() -> None:
    """Have vLLM's front end ask the taps first. Idempotent."""
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    process_outputs = OutputProcessor.process_outputs
    if hasattr(RequestState, "nestedfp_tap"):
        return
    RequestState.nestedfp_tap = None  # type: ignore[attr-defined]

    @functools.wraps(process_outputs)
    def tapped(
        self: Any,
        engine_core_outputs: list[Any],
        engine_core_timestamp: float | None = None,
        iteration_stats: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        states = self.request_states
        left = []
        for output in engine_core_outputs:
            state = states.get(output.request_id)
            tap = None if state is None else state.nestedfp_tap
            if tap is not None and tap.takes(output, engine_core_timestamp):
                self._update_stats_from_output(state, output, engine_core_timestamp, iteration_stats)
            else:
                left.append(output)
        return process_outputs(self, left, engine_core_timestamp, iteration_stats, *args, **kwargs)

    OutputProcessor.process_outputs = tapped  # type: ignore[method-assign,assignment]
