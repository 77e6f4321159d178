"""Reads a request: its body, within bounds of time and memory, what it asks for, and that this costs its neighbours little."""

import asyncio
import functools
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from deploy.front.checks import faults
from deploy.front.replies import OVERLOADED, Refused
from nestedfp.vllm_plugin.scheduling.pin import PIN_HEADER, PIN_KEY, AskedError, AskedPrecision, stated

RequestT = TypeVar("RequestT", bound=BaseModel)
BODY_S = 60.0  # a body must have arrived within this time: a client that trickles holds a place in the path
# As many of the largest as may be on their way at once. Clients that send as many and finish none would take a replica's memory.
MOST_AT_ONCE = 64
SMALL_BYTES = 1 << 14  # of a body, which is parsed in a tenth of a second whatever it holds
# The type and subtype alone: a browser sends any page's text/plain with whatever parameters the page wants.
JSON_KIND = re.compile(r"application/json|[\w!#$&^.+-]+/[\w!#$&^.+-]+\+json", re.ASCII)
DEADLINE_KEY = "queue_deadline_s"  # in vllm_xargs
DEADLINE_HEADER = "x-nestedfp-queue-deadline-s"
LONGEST_DEADLINE_S = 3600.0
PRIORITY_HEADER = "x-vllm-priority"  # vLLM's own; it goes before the body's field
# pydantic tries a message, a part of one or a prompt as each of the things it may be, and keeps a record of each of its failures: a
# body of 6 MB of {"messages": [1, 1, ...]} held the loop that writes all streams for 49 s.
MOST_VALUES = 30_000  # half a second where each is wrong, a tenth where none is
MOST_IDS = 1 << 18  # where the model's context is no longer: a million of them take 0.7 s
# Fields of lists of token ids.
OF_IDS = frozenset({"prompt", "input", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"})
MOST_SEQUENCES = 1024  # prompts times n
# Of all stop strings; vLLM takes four. Each token is compared with each: the most that may come cost it 3 us.
MOST_STOP_CHARACTERS = 4096
MOST_LISTED = 1024  # each is looked up at every step
MOST_ALLOWED = 1 << 18  # tokens out of which the next may be: no vocabulary has more
# Of one prompt in the mean, four characters each, where the context is shorter than a quarter of them: what is to be truncated may
# be longer than a context, and who only counts tokens too.
LEAST_PROMPT_TOKENS = 1 << 16
INT32 = 2**31 - 1  # what the engine keeps of a number
NUMBERS = ("top_k", "min_tokens", "max_tokens", "max_completion_tokens", "max_output_tokens", "priority")


def check_kind(headers: Mapping[bytes, bytes]) -> None:
    """Check what a request's headers say of its body.

    Raises:
        Refused: 415 for a compressed body, 400 for one that is not said to be JSON.
    """
    coding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    if coding not in ("", "identity"):
        raise Refused(415, f"expected a body without Content-Encoding, got {coding[:80]!r}: send it uncompressed")
    kind = headers.get(b"content-type", b"").decode("latin-1")
    if not JSON_KIND.fullmatch(kind.partition(";")[0].strip().lower()):
        raise Refused(
            400,
            "expected a JSON body with the header 'Content-Type: application/json'; "
            f"got Content-Type {kind[:80] or 'none'}",
        )


class Bodies:
    """Reads bodies; those that arrive at the same time share a bound."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._parsing = asyncio.Lock()
        self._rested_s = 0.0  # of the monotonic clock

    async def read(self, receive: Any) -> bytes:
        """Return a whole body.

        Raises:
            Refused: 413 beyond the limit, 408 when it takes too long, 400 when the client left before its end, 503 when too much is
                on its way already.
        """
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_S):
                await self._read(receive, parts)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {BODY_S:.0f} s") from None
        finally:
            self._held_bytes -= sum(map(len, parts))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @asynccontextmanager
    async def parsing(self, size: int) -> AsyncIterator[None]:
        """Parse a body of so many bytes inside; of those that are not small one at a time.

        That holds the event loop. Between two of them it is everybody else's for as long as the first one took.
        """
        if size <= SMALL_BYTES:
            yield
            return
        async with self._parsing:
            await asyncio.sleep(max(0.0, self._rested_s - time.monotonic()))
            began_s = time.monotonic()
            try:
                yield
            finally:
                self._rested_s = 2 * time.monotonic() - began_s

    async def _read(self, receive: Any, parts: list[bytes]) -> None:
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the body ended before its announced length")
            part = message.get("body", b"")
            size += len(part)
            if size > self._limit_bytes:
                raise Refused(
                    413,
                    f"the body is larger than {self._limit_bytes} bytes; send a shorter prompt or raise http.max_body_bytes",
                )
            if self._held_bytes + len(part) > MOST_AT_ONCE * self._limit_bytes:
                raise Refused(503, "too many large bodies are on their way; try again", OVERLOADED)
            parts.append(part)
            self._held_bytes += len(part)
            if not message.get("more_body"):
                return


def parse(
    body: bytes,
    headers: Mapping[bytes, bytes],
    model: type[RequestT],
    check: Callable[[RequestT], None],
    most_ids: int = MOST_IDS,
) -> RequestT:
    """Return the request, of vLLM's class ``model``, with at most so many token ids; ``check`` looks at it once it is read.

    Raises:
        Refused: 415 for a compressed body, 400 with the first fault, whatever vLLM's validators make of it.
    """
    check_kind(headers)
    check_values(body, most_ids)
    try:
        request = _adapter(model).validate_json(body)
        for message in getattr(request, "messages", ()):
            # pydantic leaves the parts for whoever looks at them first, and only once.
            parts = message.get("content") if isinstance(message, dict) else None
            if parts is not None and not isinstance(parts, str | list):
                message["content"] = list(parts)
        check(request)
        return request
    except Refused:
        raise
    except ValidationError as error:
        raise faults.refusal(error, body) from None
    except Exception as error:  # of vLLM's validators
        raise faults.of_vllm(error, from_json(body)) from None


def check_values(body: bytes, most_ids: int = MOST_IDS) -> None:
    """Refuse a body in which there are more values than ``MOST_VALUES``, those in lists and objects and these themselves.

    ``most_ids`` token ids may come on top.
    """
    # Each stands after a bracket or a comma. A text may hold such too, so that whoever has many is looked at closely.
    if body.count(b"[") + body.count(b"{") + body.count(b",") < MOST_VALUES:
        return
    # No pattern: none of those that match a string takes a time in proportion to what is none.
    bare = b"".join(body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    too_many = bare.count(b"[") + bare.count(b"{") >= MOST_VALUES or bare.count(b",") >= most_ids + MOST_VALUES
    try:
        if not too_many and _count(from_json(body)) <= MOST_VALUES:
            return
    except ValueError:
        return  # whoever reads it says what is wrong with it
    raise Refused(
        400,
        f"expected a body of at most {MOST_VALUES} values (messages, their fields and parts, prompts and the like) and {most_ids} "
        "token ids, got one of more: send less in one request",
    )


def _count(content: Any) -> int:
    """Return how many values there are, token ids left out; once there are too many, not all are counted."""
    top = content.items() if isinstance(content, dict) else [("", content)]
    count = len(top)
    left = [(value, key in OF_IDS) for key, value in top]
    while left and count <= MOST_VALUES:
        value, of_ids = left.pop()
        if not isinstance(value, dict | list) or (of_ids and _are_ids(value)):
            continue
        count += len(value)
        if count <= MOST_VALUES:
            left += [(each, of_ids) for each in (value.values() if isinstance(value, dict) else value)]
    return count


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) == {int} and min(value) >= 0


def check_bounds(request: Any) -> None:
    """Check that one request cannot cost its neighbours much, nor the engine a number that it cannot keep.

    Raises:
        Refused: 400 with the field, its bound and what came.
    """
    fields = vars(request)  # not getattr: it warns of a deprecated field at every request
    prompt = fields.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    _at_most("prompt x n", prompts * max(1, fields.get("n") or 1), MOST_SEQUENCES, "sequences")
    for name in ("stop", "bad_words"):  # the event loop makes tokens of the second
        texts = fields.get(name) or ()
        _at_most(
            name, len(texts) if isinstance(texts, str) else sum(map(len, texts)), MOST_STOP_CHARACTERS, "characters"
        )
    for name in ("stop_token_ids", "bad_words", "logit_bias", "logprob_token_ids", "vllm_xargs"):
        _at_most(name, len(fields.get(name) or ()), MOST_LISTED, "entries")
    _at_most("allowed_token_ids", len(fields.get("allowed_token_ids") or ()), MOST_ALLOWED, "entries")
    for name in NUMBERS:
        value = fields.get(name)
        if value is not None and not -INT32 <= value <= INT32:
            raise Refused(400, f"{name} is expected between {-INT32} and {INT32}, got {value!r:.40}", param=name)


def check_length(prompts: int, tokens: int, longest: int | None) -> None:
    """Refuse prompts, of so many tokens by an estimate, that are far longer than the model's context; None: it is not known."""
    if longest is None or tokens <= prompts * (most := max(LEAST_PROMPT_TOKENS, 4 * longest)):
        return
    raise Refused(
        400,
        f"This model's maximum context length is {longest} tokens. However, the prompt has about {tokens // prompts}, and no more "
        f"than {most} are read at all: send less",
    )


def _at_most(name: str, value: int, bound: int, unit: str) -> None:
    if value > bound:
        raise Refused(400, f"{name}: at most {bound} {unit} in one request, got {value}", param=name)


@functools.cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def stated_precision(request: Any, headers: dict[bytes, bytes]) -> AskedPrecision | None:
    """Return what a request asks for, in its body or its header; None: it says nothing. Of ``auto`` and another, the other.

    Raises:
        Refused: 400 for an unknown precision, or for two that contradict each other.
    """
    try:
        return stated(
            (
                (getattr(request, PIN_KEY, None), PIN_KEY),
                (_xargs(request).get(PIN_KEY), f"vllm_xargs.{PIN_KEY}"),
                (_header(headers, PIN_HEADER), PIN_HEADER),
            )
        )
    except AskedError as error:
        raise Refused(400, str(error), param=error.where) from None


def apply_precision(request: Any, asked: AskedPrecision) -> None:
    """Have the engine hear what a request, or its key, asks for.

    Raises:
        Refused: 400 for a promise that could not be kept.
    """
    if asked is not AskedPrecision.AUTO:
        request.vllm_xargs = {**_xargs(request), PIN_KEY: asked.value}
    if asked is AskedPrecision.EXACT and getattr(request, "use_beam_search", False):
        raise Refused(400, "use_beam_search cannot be exact: leave one of the two out", param="use_beam_search")


def queue_deadline_s(request: Any, headers: dict[bytes, bytes], usual_s: float | None) -> float | None:
    """Return how long the engine may take from the arrival until it begins a request; None: as long as it takes.

    Of a body and a header that both say it, the stricter wins.

    Args:
        usual_s: of a request that says nothing.

    Raises:
        Refused: 400 for what is no such time.
    """
    stated = [
        _seconds(given, where)
        for given, where in (
            (_xargs(request).get(DEADLINE_KEY), f"vllm_xargs.{DEADLINE_KEY}"),
            (_header(headers, DEADLINE_HEADER), DEADLINE_HEADER),
        )
        if given is not None
    ]
    return min(stated, default=usual_s)  # type: ignore[type-var]


def _seconds(given: Any, where: str) -> float:
    try:
        deadline_s = float(given)
    except (TypeError, ValueError, OverflowError):
        deadline_s = 0.0
    if not 0 < deadline_s <= LONGEST_DEADLINE_S:  # NaN is refused as well
        raise Refused(
            400,
            f"{DEADLINE_KEY} is expected to be seconds, more than 0 and at most {LONGEST_DEADLINE_S:g}, got {given!r:.40}; set it "
            f"in vllm_xargs.{DEADLINE_KEY} or in the header {DEADLINE_HEADER}",
            param=where,
        )
    return deadline_s


def stated_priority(request: Any, headers: dict[bytes, bytes]) -> int:
    """Return the number that a request gives itself: the lower, the earlier; 0: none.

    Raises:
        Refused: 400 for what is none, or one that the engine cannot keep; vLLM passes over a header that is none.
    """
    if (given := _header(headers, PRIORITY_HEADER)) is None:
        return int(request.priority)
    try:
        stated = int(given)
    except ValueError:
        stated = INT32 + 1
    if not -INT32 <= stated <= INT32:
        message = f"the header {PRIORITY_HEADER} is expected to be a whole number between {-INT32} and {INT32}, got {given!r:.40}"
        raise Refused(400, message, param=PRIORITY_HEADER)
    return stated


def _header(headers: Mapping[bytes, bytes], name: str) -> str | None:
    value = headers.get(name.encode())
    return None if value is None else value.decode("latin-1")


def _xargs(request: Any) -> dict[str, Any]:
    return request.vllm_xargs or {}
