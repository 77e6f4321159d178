"""Discloses in every response its class and its tokens by precision: ``usage.precision`` and ``usage.precision_tokens``.

Pure: works on response objects as dictionaries and on server-sent events as text.
"""

import json
from collections.abc import Callable
from typing import Any

from nestedfp.answers import answer_of

# {"prompt": {"fp16": 1, "fp8": 0, "cached": {"fp16": 0, "fp8": 0}}, "completion": {"fp16": 1, "fp8": 0}}
Tokens = dict[str, dict[str, Any]]
PREFIX = "data: "


def disclose(
    usage: dict[str, Any] | None, tokens: Tokens | None, prompt_tokens: int = 0, *, whole: bool = True
) -> dict[str, Any] | None:
    """Return ``usage`` with ``precision`` and ``precision_tokens`` added; made where there is none yet.

    Args:
        tokens: of the sequences that have ended; each counts its prompt.
        prompt_tokens: of the request's prompts, each counted once, for a usage to be made; 0: not known, what was computed counts.
        whole: all sequences have ended; before, nobody knows the answer's class.
    """
    if tokens is None:
        return usage
    if usage is None:
        computed, cached = tokens["prompt"], tokens["prompt"]["cached"]
        prompt = prompt_tokens or computed["fp16"] + computed["fp8"] + sum(cached.values())
        completion = sum(tokens["completion"].values())
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**usage, **({"precision": answer_of(tokens).value} if whole else {}), "precision_tokens": tokens}


class StreamDiscloser:
    """Adds the disclosure to a stream of server-sent events.

    A client that asked for ``stream_options.include_usage`` finds it in the usage chunk, as OpenAI defines it. Any other
    client finds a ``usage`` object in each chunk that carries a ``finish_reason``, of the sequences that have ended by then;
    no chunk is added, so that clients that read ``choices[0]`` of every chunk keep working.

    Args:
        tokens: returns the counts so far, or None when nothing is known.
        include_usage: the client asked for a usage chunk.
        prompt_tokens: returns those of the request's prompts.
        whole: returns whether all sequences have ended.
    """

    def __init__(
        self,
        tokens: Callable[[], Tokens | None],
        include_usage: bool,
        prompt_tokens: Callable[[], int] = lambda: 0,
        whole: Callable[[], bool] = lambda: True,
    ) -> None:
        self._tokens = tokens
        self._whole = whole
        self._prompt_tokens = prompt_tokens
        self._marker = '"usage":{' if include_usage else '"finish_reason":"'

    def event(self, event: str) -> str:
        """Return one event (``data: {...}`` and a blank line), changed only if it is the one to carry the counts."""
        # The marker cannot come from generated text: quotes are escaped inside JSON strings.
        if self._marker not in event or not event.startswith(PREFIX):
            return event
        chunk = json.loads(event.removeprefix(PREFIX))
        chunk["usage"] = disclose(chunk.get("usage"), self._tokens(), self._prompt_tokens(), whole=self._whole())
        return f"{PREFIX}{json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


class NamedDiscloser:
    """Adds the disclosure to a stream whose events have names.

    Args:
        tokens: as of ``StreamDiscloser``.
        last: the names of the events that carry the usage, in themselves or in their response.
    """

    def __init__(self, tokens: Callable[[], Tokens | None], last: tuple[str, ...]) -> None:
        self._tokens, self._last = tokens, tuple(f"event: {name}\n" for name in last)

    def event(self, event: str) -> str:
        """Return one event (its name, ``data: {...}`` and a blank line), changed only if it is one to carry the counts."""
        if not event.startswith(self._last):
            return event
        name, _, data = event.partition(PREFIX)
        content = json.loads(data)
        holder = content.get("response", content)
        holder["usage"] = disclose(holder.get("usage") or {}, self._tokens())
        return f"{name}{PREFIX}{json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"
