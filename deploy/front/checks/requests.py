"""Makes a request of its body and checks it before vLLM sees it."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from deploy.front.checks import faults
from deploy.front.checks.bodies import check_kind
from deploy.front.checks.bounds import INT32, check_bounds
from deploy.front.checks.values import MOST_IDS, check_values
from deploy.front.replies import Refused
from nestedfp.vllm_plugin.scheduling.pin import PIN_HEADER, PIN_KEY, parse_pin

RequestT = TypeVar("RequestT", bound=BaseModel)
DEADLINE_KEY = "queue_deadline_s"  # in vllm_xargs
DEADLINE_HEADER = "x-nestedfp-queue-deadline-s"
LONGEST_DEADLINE_S = 3600.0
PRIORITY_HEADER = "x-vllm-priority"  # vLLM's own; it goes before the body's field
KNOWN_XARGS = frozenset({PIN_KEY, DEADLINE_KEY})


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
        check(request)
        return request
    except Refused:
        raise
    except ValidationError as error:
        raise faults.refusal(error, body) from None
    except Exception as error:
        raise faults.refusal_of_vllm(error) from None


@functools.cache
def _adapter(model: type[RequestT]) -> TypeAdapter[RequestT]:
    return TypeAdapter(model)


def apply_pin(request: Any, headers: dict[bytes, bytes]) -> bool:
    """Copy the pin from the header where the body has none; return whether the request is pinned to FP16.

    Raises:
        Refused: 400 for an unknown precision, or a pin that could not be kept.
    """
    given = headers.get(PIN_HEADER.encode())
    if given is not None and PIN_KEY not in _xargs(request):
        request.vllm_xargs = {**_xargs(request), PIN_KEY: given.decode("latin-1")}
    try:
        pinned = parse_pin(_xargs(request))
    except ValueError as error:
        raise Refused(400, str(error), param=f"vllm_xargs.{PIN_KEY}") from None
    if pinned and getattr(request, "use_beam_search", False):
        raise Refused(400, "use_beam_search cannot be pinned to FP16: leave one of the two out", param=PIN_KEY)
    return pinned


def queue_deadline_s(request: Any, headers: dict[bytes, bytes], usual_s: float | None) -> float | None:
    """Return how long the engine may take from the arrival until it begins a request; None: as long as it takes.

    Args:
        usual_s: of a request that says nothing.

    Raises:
        Refused: 400 for what is no such time.
    """
    given: Any = _xargs(request).get(DEADLINE_KEY)
    if given is None and (header := headers.get(DEADLINE_HEADER.encode())) is not None:
        given = header.decode("latin-1")
    if given is None:
        return usual_s
    try:
        deadline_s = float(given)
    except (TypeError, ValueError, OverflowError):
        deadline_s = 0.0
    if not 0 < deadline_s <= LONGEST_DEADLINE_S:  # NaN is refused as well
        raise Refused(
            400,
            f"{DEADLINE_KEY} is expected to be seconds, more than 0 and at most {LONGEST_DEADLINE_S:g}, got {given!r:.40}; set it "
            f"in vllm_xargs.{DEADLINE_KEY} or in the header {DEADLINE_HEADER}",
            param=f"vllm_xargs.{DEADLINE_KEY}",
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


def unknown_fields(request: Any) -> list[str]:
    """Return the fields that nothing reads, by name: a typing error in an optional field would pass unnoticed."""
    extra = sorted(set(request.model_extra or {}) - {"vllm_xargs"})
    xargs = sorted(set(_xargs(request)) - KNOWN_XARGS)
    return extra + [f"vllm_xargs.{name}" for name in xargs]


def _xargs(request: Any) -> dict[str, Any]:
    # A request for vectors has no such field of vLLM's: there it is one of those that pydantic keeps beside.
    return getattr(request, "vllm_xargs", None) or {}
