"""Checks before anything starts whether vLLM has the parsers that ``engine.extra`` names. Imports vLLM's lists of them."""

import difflib
from collections.abc import Collection
from typing import Any

from deploy.config import ConfigError


def check_parsers(extra: dict[str, Any]) -> None:
    """Refuse the name of a parser that vLLM does not have, and settings that would do nothing.

    Raises:
        ConfigError: one sentence with the cause and what to change.
    """
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    tools, wanted = extra.get("tool_call_parser"), extra.get("enable_auto_tool_choice")
    if tools is not None and wanted is False:
        raise ConfigError(
            "engine.extra.tool_call_parser does nothing with enable_auto_tool_choice: false; leave one of them out"
        )
    if wanted and tools is None:
        raise ConfigError(
            "engine.extra.enable_auto_tool_choice needs to know how the model writes its calls: set tool_call_parser, one of "
            + ", ".join(ToolParserManager.list_registered())
        )
    _check("tool_call_parser", tools, ToolParserManager.list_registered())
    _check("reasoning_parser", extra.get("reasoning_parser"), ReasoningParserManager.list_registered())


def _check(key: str, name: Any, known: Collection[str]) -> None:
    if name is None or name in known:
        return
    near = difflib.get_close_matches(str(name), known, 1)
    meant = f"did you mean {near[0]!r}? It has" if near else "it has"
    raise ConfigError(f"engine.extra.{key}: vLLM has no parser {name!r}; {meant} {', '.join(sorted(known))}")
