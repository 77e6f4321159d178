"""The trace reader, for the load test: the same as ``controller.trace``, but its errors end a load test like any other."""

from collections.abc import Iterable
from pathlib import Path

from controller import trace
from controller.trace import BACKWARDS_TOLERANCE_S, COLUMNS, Arrival
from loadtest.errors import TraceError

__all__ = ["BACKWARDS_TOLERANCE_S", "COLUMNS", "Arrival", "parse_trace", "read_trace"]


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """Read a trace file; arrivals come back sorted, the first at 0 s."""
    try:
        return trace.read_trace(path)
    except trace.TraceError as error:
        raise TraceError(str(error)) from error


def parse_trace(lines: Iterable[str], name: str) -> tuple[Arrival, ...]:
    """Parse the lines of a trace; ``name`` is only used in error messages."""
    try:
        return trace.parse_trace(lines, name)
    except trace.TraceError as error:
        raise TraceError(str(error)) from error
