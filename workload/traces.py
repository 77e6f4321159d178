"""Traces of requests -> arrivals. Pure but for opening the file; standard library only.

A CSV file is of the form of the Azure public data set (AzureLLMInferenceTrace_*.csv): a header and one request per line,

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:17:03.9799600,4808,10

A .jsonl file is of the form of Mooncake's traces (FAST'25), which tell what prompts share: milliseconds, tokens, and ids of the
blocks of 512 tokens of a prompt; prompts that begin with the same ids begin with the same tokens.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [0, 46, 47, 2353]}

Reading is strict: the first broken line ends it, naming the file and the line. The one repair: lines that step back by
at most ``BACKWARDS_TOLERANCE_S`` are sorted, because front ends log slightly out of order. A gap is a quiet time and
stays as it is.
"""

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_KEYS, MOONCAKE_BLOCK_TOKENS = ("timestamp", "input_length", "output_length", "hash_ids"), 512
MOST_TOKENS = 10_000_000  # more than any context; beyond it is a damaged file
BACKWARDS_TOLERANCE_S = 1.0  # front ends log slightly out of order; more than this is a damaged file


class TraceError(ValueError):
    """A trace cannot be read, or cannot give the load that was asked for; the message is one readable line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace."""

    at_s: float  # after the start of the trace
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # ids of the parts of ``block_tokens`` of its prompt, from the beginning on
    block_tokens: int = 0


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """Read a trace file; arrivals come back sorted, the first at 0 s."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return (parse_mooncake if path.suffix == ".jsonl" else parse_trace)(file, str(path))
    except OSError as error:
        raise TraceError(f"{path}: cannot read the trace ({error.strerror}); give a CSV file to --trace") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: expected UTF-8 text, got byte {error.object[error.start]:#04x}") from error


def parse_trace(lines: Iterable[str], name: str) -> tuple[Arrival, ...]:
    """Parse the lines of a trace; ``name`` is only used in error messages."""
    rows = csv.DictReader(lines)
    try:
        return _parse_rows(rows, name)
    except csv.Error as error:
        raise TraceError(f"{name}:{rows.line_num}: not CSV: {error}") from error


def parse_mooncake(lines: Iterable[str], name: str) -> tuple[Arrival, ...]:
    """Parse the lines of a Mooncake trace; ``name`` is only used in error messages."""
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            at_ms, prompt, output, blocks = (json.loads(line)[key] for key in MOONCAKE_KEYS)
        except (ValueError, TypeError, KeyError) as error:
            raise TraceError(f"{where}: expected a JSON object with {', '.join(MOONCAKE_KEYS)}") from error
        at_s = _count(str(at_ms), "timestamp", where) / 1e3
        prompt, output = _count(str(prompt), "input_length", where), _count(str(output), "output_length", where)
        if not isinstance(blocks, list) or not all(isinstance(each, int) and each >= 0 for each in blocks):
            raise TraceError(f"{where}: hash_ids: expected a list of whole numbers from 0 on")
        found.append(Arrival(at_s, prompt, output, tuple(blocks), MOONCAKE_BLOCK_TOKENS))
    if not found:
        raise TraceError(f"{name}: expected at least one request, got an empty file")
    start_s = min(arrival.at_s for arrival in found)
    moved = (replace(arrival, at_s=arrival.at_s - start_s) for arrival in found)
    return tuple(sorted(moved, key=lambda arrival: arrival.at_s))


def _parse_rows(rows: "csv.DictReader[str]", name: str) -> tuple[Arrival, ...]:
    if rows.fieldnames is None:
        raise TraceError(f"{name}: expected the header {','.join(COLUMNS)}, got an empty file")
    if missing := [column for column in COLUMNS if column not in rows.fieldnames]:
        raise TraceError(f"{name}:1: expected the columns {', '.join(COLUMNS)}; missing: {', '.join(missing)}")
    found: list[tuple[datetime, int, int]] = []
    latest: datetime | None = None  # not the line before: steps back of any small size would add up
    for row in rows:
        where = f"{name}:{rows.line_num}"
        if None in row or None in row.values():
            raise TraceError(f"{where}: expected {len(rows.fieldnames)} columns, got more or fewer")
        at = _timestamp(row["TIMESTAMP"], where)
        try:
            backwards_s = (latest - at).total_seconds() if latest else 0.0
        except TypeError as error:
            raise TraceError(f"{where}: TIMESTAMP with and without time zone in one file") from error
        if backwards_s > BACKWARDS_TOLERANCE_S:
            raise TraceError(
                f"{where}: expected times in order (tolerance {BACKWARDS_TOLERANCE_S:g} s), "
                f"got one {backwards_s:.3f} s before the latest above it; sort the file by TIMESTAMP"
            )
        latest = at if latest is None else max(latest, at)
        prompt, output = (_count(row[column], column, where) for column in COLUMNS[1:])
        found.append((at, prompt, output))
    if not found:
        raise TraceError(f"{name}: expected at least one request, got only a header")
    start = min(at for at, *_ in found)
    arrivals = (Arrival((at - start).total_seconds(), prompt, output) for at, prompt, output in found)
    return tuple(sorted(arrivals, key=lambda arrival: arrival.at_s))


def _timestamp(text: str, where: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise TraceError(f"{where}: TIMESTAMP: expected e.g. 2023-11-16 18:17:03.97996, got {text!r}") from error


def _count(text: str, column: str, where: str) -> int:
    try:
        count = int(text)
    except ValueError as error:
        raise TraceError(f"{where}: {column}: expected a whole number, got {text[:40]!r}") from error
    if count < 0:
        raise TraceError(f"{where}: {column}: expected 0 or more, got {text[:40]}")
    if count > MOST_TOKENS:
        raise TraceError(f"{where}: {column}: expected at most {MOST_TOKENS} tokens, got {text[:40]}; correct the line")
    return count
