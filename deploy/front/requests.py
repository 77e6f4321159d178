"""Reads a request and checks it before vLLM sees it."""

import asyncio
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from deploy.front.bounds import check_bounds
from deploy.front.replies import Refused
from nestedfp.vllm_plugin.pin import PIN_HEADER, PIN_KEY, parse_pin

RequestT = TypeVar("RequestT", bound=BaseModel)
KNOWN_XARGS = frozenset({PIN_KEY})
BODY_S = 60.0  # a body must have arrived within this time: a client that trickles holds a place in the path


async def read_body(receive: Any, limit_bytes: int) -> bytes:
    """Return the whole body.

    Raises:
        Refused: 413 beyond the limit, 408 when it takes too long, 400 when the client left before its end.
    """
    try:
        async with asyncio.timeout(BODY_S):
            return await _read_body(receive, limit_bytes)
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {BODY_S:.0f} s") from None


async def _read_body(receive: Any, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the body ended before its announced length")
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise Refused(
                413, f"the body is larger than {limit_bytes} bytes; send a shorter prompt or raise http.max_body_bytes"
            )
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse(body: bytes, headers: dict[bytes, bytes], model: type[RequestT]) -> RequestT:
    """Return the request.

    Raises:
        Refused: 400 with the first fault, whatever vLLM's validators make of it.
    """
    kind = headers.get(b"content-type", b"").decode("latin-1")
    if kind.partition(";")[0].strip().lower() not in ("application/json",) and "+json" not in kind:
        raise Refused(
            400,
            "expected a JSON body with the header 'Content-Type: application/json'; "
            f"got Content-Type {kind[:80] or 'none'}",
        )
    try:
        request = model.model_validate_json(body)
        check_bounds(request)
        return request
    except Refused:
        raise
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or None
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "json_invalid":
            raise Refused(400, f"the body is no JSON: {first['msg']}") from None
        raise Refused(400, f"{message}, at {where}" if where else message, param=where) from None
    except Exception as error:  # validators of vLLM's that stumble over a value of another type than they expect
        raise Refused(400, f"the request has a field of a wrong type: {one_line(error)}") from None


def apply_pin(request: Any, headers: dict[bytes, bytes]) -> bool:
    """Copy the pin from the header where the body has none; return whether the request is pinned to FP16.

    Raises:
        Refused: 400 for an unknown precision, or a pin that could not be kept.
    """
    given = headers.get(PIN_HEADER.encode())
    if given is not None and PIN_KEY not in (request.vllm_xargs or {}):
        request.vllm_xargs = {**(request.vllm_xargs or {}), PIN_KEY: given.decode("latin-1")}
    try:
        pinned = parse_pin(request.vllm_xargs)
    except ValueError as error:
        raise Refused(400, str(error), param=f"vllm_xargs.{PIN_KEY}") from None
    if pinned and request.use_beam_search:
        raise Refused(400, "use_beam_search cannot be pinned to FP16: leave one of the two out", param=PIN_KEY)
    return pinned


def unknown_fields(request: Any) -> list[str]:
    """Return the fields that nothing reads, by name: a typing error in an optional field would pass unnoticed."""
    extra = sorted(request.model_extra or {})
    xargs = sorted(set(request.vllm_xargs or {}) - KNOWN_XARGS)
    return extra + [f"vllm_xargs.{name}" for name in xargs]


def one_line(error: BaseException) -> str:
    """Return an exception's first line, without paths or addresses, at most 300 characters."""
    lines = str(error).splitlines()
    text = lines[0] if lines else type(error).__name__
    return "an internal detail" if "/" in text or " at 0x" in text else text[:300]
