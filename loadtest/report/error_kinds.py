"""What went wrong, by kind: messages that differ in numbers alone are one, and none is left out of the count. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

KIND_CHARS = 120
MOST_SHOWN = 3  # in a sentence
_STATUS = re.compile(r"HTTP \d{3}")
_MESSAGE = re.compile(r'"message":\s*"((?:[^"\\]|\\.)*)')  # of an OpenAI error, of which the end may be cut off
_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def error_kinds(errors: Iterable[str]) -> dict[str, int]:
    """Count the errors of ``RequestRecord.error`` by kind, the most frequent first; the counts add up to the errors."""
    return dict(Counter(map(_kind, errors)).most_common())


def most_frequent(kinds: Mapping[str, int]) -> str:
    """The most frequent kinds with their counts, for a sentence; what is left out is counted."""
    shown = Counter(kinds).most_common(MOST_SHOWN)
    parts = [f"{count} x {text}" for text, count in shown]
    if rest := sum(kinds.values()) - sum(count for _, count in shown):
        parts.append(f"{rest} for other reasons")
    return ", ".join(parts)


def _kind(error: str) -> str:
    status = found.group() if (found := _STATUS.match(error)) else ""
    said = error[len(status) :].lstrip(": ")
    if message := _MESSAGE.search(said):
        said = message.group(1)
    said = _NUMBER.sub("N", _ID.sub("ID", said))
    return (f"{status}: {said}" if status and said else status + said)[:KIND_CHARS]
