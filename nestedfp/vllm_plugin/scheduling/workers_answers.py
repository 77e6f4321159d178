"""Asks the workers for what they measured before an engine's first request: an SLO may be in force without a directive."""

import functools
from collections.abc import Callable
from typing import Any

from vllm.v1.engine.core import EngineCore


def install(ask: Callable[[Any], Any]) -> None:
    """Wrap ``EngineCore.add_request``, which runs in the thread that may ask the workers. Idempotent.

    Args:
        ask: called with the core before each request; asks once.
    """
    original = EngineCore.add_request
    if getattr(original, "_nestedfp", False):
        return

    @functools.wraps(original)
    def add_request(self: Any, *args: Any, **kwargs: Any) -> None:
        ask(self)
        original(self, *args, **kwargs)

    add_request._nestedfp = True  # type: ignore[attr-defined]
    EngineCore.add_request = add_request  # type: ignore[method-assign]
