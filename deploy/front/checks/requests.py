"""Makes a request of its body and checks it before vLLM sees it."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from deploy.front.checks import faults
from deploy.front.checks.bodies import check_kind
from deploy.front.checks.bounds import INT32, check_bounds
from deploy.front.checks.values import MOST_IDS, check_values
from deploy.front.replies import Refused
from nestedfp.vllm_plugin.scheduling.pin import PIN_HEADER, PIN_KEY, AskedError, AskedPrecision, stated

RequestT = TypeVar("RequestT", bound=BaseModel)
DEADLINE_KEY = "queue_deadline_s"  # in vllm_xargs
DEADLINE_HEADER = "x-nestedfp-queue-deadline-s"
LONGEST_DEADLINE_S = 3600.0
PRIORITY_HEADER = "x-vllm-priority"  # vLLM's own; it goes before the body's field


def parse(
    body: bytes,
    headers: dict[bytes, bytes],
    model: type[RequestT],
    check: Callable[[RequestT], None] = check_bounds,
    most_ids: int = MOST_IDS,
) -> RequestT:
    """Return the request.

    Args:
        model: vLLM's class of it, or a union of such.
        check: of the request once it is read; raises ``Refused``.
        most_ids: token ids in it.

    Raises:
        Refused: 415 for a compressed body, 400 with the first fault, whatever vLLM's validators make of it.
    """
    check_kind(headers)
    check_values(body, most_ids)
    try:
        request = _adapter(model).validate_json(body)
        _read_parts(request, body)
        check(request)
        return request
    except Refused:
        raise
    except ValidationError as error:
        raise _refusal(error, body) from None
    except Exception as error:
        given = from_json(body)
        raise _of_tool_calls(given) or faults.refusal_of_vllm(error, given) from None


def _refusal(error: ValidationError, body: bytes) -> Refused:
    try:
        given = from_json(body)
    except ValueError:
        return Refused(400, f"the body is no JSON: {error.errors(include_url=False)[0]['msg']}")
    fault = faults.refusal(error, given)
    known = fault.param is None or not isinstance(given, dict) or fault.param.partition(".")[0] in given
    # Tool calls are read when the rest is, which does not say of which message they are.
    return fault if known else _of_tool_calls(given) or fault


def _of_tool_calls(given: Any) -> Refused | None:
    """Return the first fault in the tool calls of a chat's messages."""
    from openai.types.chat import ChatCompletionMessageToolCallUnionParam

    messages = given.get("messages") if isinstance(given, dict) else None
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        place = ("messages", number, "tool_calls")
        if calls is not None and not isinstance(calls, list):
            where = ".".join(map(str, place))
            return Refused(400, f"Input should be a list, at {where}", param=where)
        try:
            list(_adapter(Iterable[ChatCompletionMessageToolCallUnionParam]).validate_python(calls or []))
        except ValidationError as error:
            return faults.refusal(error, calls, place)
    return None


def _read_parts(request: Any, body: bytes) -> None:
    """Read the parts of a chat's messages, which pydantic leaves for whoever looks at them first, and only once."""
    for number, message in enumerate(getattr(request, "messages", ())):
        parts = message.get("content") if isinstance(message, dict) else None
        if parts is None or isinstance(parts, str | list):
            continue
        try:
            message["content"] = list(parts)
        except ValidationError as error:
            given = from_json(body)["messages"][number]["content"]
            raise faults.refusal(error, given, ("messages", number, "content")) from None


@functools.cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def stated_precision(request: Any, headers: dict[bytes, bytes]) -> AskedPrecision | None:
    """Return what a request asks for, in its body or its header; None: it says nothing. Of ``auto`` and another, the other.

    Raises:
        Refused: 400 for an unknown precision, or for two that contradict each other.
    """
    header = headers.get(PIN_HEADER.encode())
    try:
        return stated(
            (
                (getattr(request, PIN_KEY, None), PIN_KEY),
                (_xargs(request).get(PIN_KEY), f"vllm_xargs.{PIN_KEY}"),
                (None if header is None else header.decode("latin-1"), PIN_HEADER),
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
    header = headers.get(DEADLINE_HEADER.encode())
    stated = [
        _seconds(given, where)
        for given, where in (
            (_xargs(request).get(DEADLINE_KEY), f"vllm_xargs.{DEADLINE_KEY}"),
            (None if header is None else header.decode("latin-1"), DEADLINE_HEADER),
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
    header = headers.get(PRIORITY_HEADER.encode())
    if header is None:
        return int(request.priority) if "priority" in type(request).model_fields else 0
    given = header.decode("latin-1")
    try:
        stated = int(given)
    except ValueError:
        stated = INT32 + 1
    if not -INT32 <= stated <= INT32:
        message = f"the header {PRIORITY_HEADER} is expected to be a whole number between {-INT32} and {INT32}, got {given!r:.40}"
        raise Refused(400, message, param=PRIORITY_HEADER)
    return stated


def _xargs(request: Any) -> dict[str, Any]:
    # A message has no such field of vLLM's: there it is one of those that pydantic keeps beside.
    return getattr(request, "vllm_xargs", None) or {}
