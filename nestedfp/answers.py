"""What an answer is: exact, fast or mixed. Pure; standard library only."""

import enum
from collections.abc import Mapping
from typing import Any


class Answer(enum.StrEnum):
    """The class of an answer."""

    EXACT = "exact"  # every token of prompt and completion computed in FP16, every cached block that it read exact
    WEIGHTS_EXACT = "weights_exact"  # as exact, but of an engine whose KV cache is FP8: what attention reads is rounded
    FAST = (
        "fast"  # no token computed in FP16; exact blocks that it read change nothing, because everybody may read them
    )
    MIXED = "mixed"  # the rest: part of it computed in FP16, and no guarantee for the whole


def answer_of(tokens: Mapping[str, Any]) -> Answer:
    """Return the class of an answer. One of several sequences is exact only where all of them are, and likewise fast.

    Args:
        tokens: of all its sequences, as ``usage.precision_tokens`` has them.
    """
    prompt, completion = tokens["prompt"], tokens["completion"]
    if not (prompt["fp8"] or prompt["cached"]["fp8"] or completion["fp8"]):
        return Answer.WEIGHTS_EXACT if tokens.get("kv_cache") == "fp8" else Answer.EXACT
    return Answer.MIXED if prompt["fp16"] or completion["fp16"] else Answer.FAST
