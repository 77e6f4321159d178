"""Server-sent events straight from the engine's outputs, for one sequence without extras. Pure.

vLLM's own generators build and validate two objects for every chunk; that is a quarter of the front end's time. Here the part
of a chunk that never changes is made once, and a chunk is that part with the text in it. The events say what vLLM's own
generators say, field by field; tests hold the two against each other. Whatever needs more than text goes through vLLM's
generator: several sequences, log-probabilities, echo, token ids, tools, reasoning.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts, usage_of
from nestedfp.vllm_plugin.serving.disclosure import disclose

encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
GAP = b"\n\n"


def is_plain(request: Any, chat: bool) -> bool:
    """Whether a streamed request asks for nothing but text."""
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
    if chat:
        return not (request.logprobs or request.tools or request.return_prompt_text)
    prompt = request.prompt
    one = isinstance(prompt, str) or (isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int))
    return one and request.logprobs is None


@dataclass(frozen=True, slots=True)
class Frame:
    """The parts of a stream's chunks that never change.

    Attributes:
        first: sent before the first text; empty for completions.
        before, after: around the text of a chunk.
        head: before the choices; the last chunk is written field by field.
        chat: deltas of a message instead of text.
        include_usage: the client asked for a chunk with the usage at the end.
    """

    first: bytes
    before: bytes
    after: bytes
    head: bytes
    chat: bool
    include_usage: bool
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


def error_events(body: bytes) -> bytes:
    """Return the events that end a stream with an error in OpenAI's format."""
    return b"data: " + body + GAP + DONE
