"""Requests whose bodies are within the limit of bytes and hold as much as fits there: what one of them costs all others.

A replica's loop reads every body and writes every stream: as long as it is busy with one, no stream of that replica goes on.
"""

import json
from typing import Any

from hostile import CHAT, COMPLETIONS, JSON, MODEL, HostileRequest

FILL = 7_500_000  # characters: a little less than http.max_body_bytes


def bodies() -> list[HostileRequest]:
    """Return the requests; most are refused, and none asks for more than one token for each of its prompts."""
    user = {"role": "user", "content": "a"}
    chats: dict[str, dict[str, Any]] = {
        "9,900 messages": {"messages": [user] * 9_900},
        "messages that are none": {"messages": [{"role": 1}] * (FILL // 12)},
        "numbers as messages": {"messages": [1] * (FILL // 3)},
        "29,000 numbers as messages": {"messages": [1] * 29_000},
        "9,900 parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 9_900}]},
        "parts of no kind": {"messages": [{"role": "user", "content": [{"a": 1}] * (FILL // 10)}]},
        "one long message": {"messages": [{"role": "user", "content": "a " * (FILL // 2)}]},
        "5,000 tools": {
            "messages": [user],
            "tools": [{"type": "function", "function": {"name": f"f{n}", "parameters": {}}} for n in range(5_000)],
            "tool_choice": "none",
        },
        "tools that are none": {"messages": [user], "tools": [{}] * (FILL // 4)},
    }
    completions: dict[str, dict[str, Any]] = {
        "one long prompt": {"prompt": "a, " * (FILL // 3)},
        "a long word": {"prompt": "a" * FILL},
        "token ids": {"prompt": [1] * (FILL // 3)},
        "token ids and a word": {"prompt": [1] * (FILL // 3) + ["a"]},
        "empty prompts": {"prompt": [[]] * (FILL // 4)},
        "1,000 prompts": {"prompt": ["a"] * 1_000},
        "allowed tokens": {"prompt": "a", "allowed_token_ids": [1] * (FILL // 3)},
        "fields that are none": {"prompt": "a", **{f"k{n}": 0 for n in range(FILL // 14)}},
        "quotes in a grammar": {"prompt": "a", "structured_outputs": {"grammar": '"' + '\\"' * 16_000}},
    }
    made = [_made(CHAT, name, {**body, "max_tokens": 1}) for name, body in chats.items()]
    made += [_made(COMPLETIONS, name, {**body, "max_tokens": 1}) for name, body in completions.items()]
    open_ended = b'{"model": "' + b"a" * FILL
    return [*made, HostileRequest("a body without an end", "POST", CHAT, tuple(JSON.items()), open_ended)]


def _made(path: str, name: str, body: dict[str, Any]) -> HostileRequest:
    text = json.dumps({"model": MODEL, **body}, separators=(",", ":")).encode()
    return HostileRequest(name, "POST", path, tuple(JSON.items()), text)
