"""Server-sent events of a streamed completion -> what the answer was. Pure.

The sender only notes (time, bytes) pieces while the stream runs, so that parsing never delays a time stamp; this file
turns them into an answer afterwards.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from workload.records import PrecisionTokens

UNFINISHED = "the stream ended before [DONE]"


@dataclass(frozen=True, slots=True)
class ParsedStream:
    """A parsed stream. Times are in the unit and clock of the lines."""

    chunk_times: tuple[float, ...]  # chunks that carried tokens
    output_tokens: int  # from usage, or the number of chunks when usage is missing
    error: str | None  # None: [DONE] was seen
    precision_tokens: PrecisionTokens | None


def lines_of(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Cut pieces of a stream, (time, bytes), into lines, each with the time of the piece that ended it."""
    rest = b""
    for at, piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield at, line


def parse_stream(lines: Iterable[tuple[float, bytes]]) -> ParsedStream:
    """Parse the lines of a stream, which may have been cut anywhere."""
    chunk_times: list[float] = []
    usage: dict[str, Any] = {}
    error: str | None = UNFINISHED
    for at, line in lines:
        if not line.startswith(b"data:"):  # comments, event names, blank separators
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            error = None
            break
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            error = f"expected a JSON object in the stream, got {data[:80]!r}"
            break
        if told := event.get("error"):
            error = f"error in the stream: {told.get('message', told) if isinstance(told, dict) else told}"
            break
        if event.get("choices"):
            chunk_times.append(at)
        if isinstance(event.get("usage"), dict):
            usage = event["usage"]
    return ParsedStream(tuple(chunk_times), _tokens(usage, chunk_times), error, _precision(usage))


def _tokens(usage: dict[str, Any], chunk_times: list[float]) -> int:
    tokens = usage.get("completion_tokens")
    return tokens if isinstance(tokens, int) and tokens >= 0 else len(chunk_times)


def _precision(usage: dict[str, Any]) -> PrecisionTokens | None:
    try:
        return PrecisionTokens.model_validate(usage["precision_tokens"])
    except (KeyError, ValidationError):
        return None
