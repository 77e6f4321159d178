"""Refuses a body of very many values before pydantic looks at it.

pydantic tries a message, a part of one or a prompt as each of the things it may be, and keeps a record of each of its failures: a
body of 6 MB of ``{"messages": [1, 1, ...]}`` held the loop that writes all streams for 49 s. Token ids have a bound of their own:
there may be as many as the model has context, and a million of them take 0.7 s.
"""

from typing import Any

from pydantic_core import from_json

from deploy.front.replies import Refused

MOST_VALUES = 30_000  # half a second where each is wrong, a tenth where none is
MOST_IDS = 1 << 18  # where the model's context is no longer
# Fields of lists of token ids.
OF_IDS = frozenset({"prompt", "input", "tokens", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"})


def check_values(body: bytes, most_ids: int = MOST_IDS) -> None:
    """Refuse a body in which there are more values than ``MOST_VALUES``, those in lists and objects and these themselves.

    Args:
        most_ids: token ids that may come on top.

    Raises:
        Refused: 400.
    """
    # Each stands after a bracket or a comma. A text may hold such too, so that whoever has many is looked at closely.
    containers = _brackets(body)
    commas = body.count(b",")
    if containers + commas < MOST_VALUES:
        return
    most = most_ids + MOST_VALUES
    if commas >= most and _outside_strings(body).count(b",") >= most:
        raise Refused(
            400, f"expected a body of at most {most_ids} token ids, got one of more: send less in one request"
        )
    if containers >= MOST_VALUES and _brackets(_outside_strings(body)) >= MOST_VALUES:
        raise _too_many()
    try:
        content = from_json(body)
    except ValueError:
        return  # whoever reads it says what is wrong with it
    if _count(content) > MOST_VALUES:
        raise _too_many()


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _outside_strings(body: bytes) -> bytes:
    # No pattern: none of those that match a string takes a time in proportion to what is none.
    return b"".join(body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def _too_many() -> Refused:
    return Refused(
        400,
        f"expected a body of at most {MOST_VALUES} values (messages, their fields and parts, prompts and the like), token ids left "
        "out, got one of more: send less in one request",
    )


def _count(content: Any) -> int:
    """Return how many values there are; once there are too many, not all are counted."""
    top = content.items() if isinstance(content, dict) else [("", content)]
    count = len(top)
    left = [(value, key in OF_IDS) for key, value in top] if count <= MOST_VALUES else []
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
