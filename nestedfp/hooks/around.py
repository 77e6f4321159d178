"""Functions of vLLM's with ours around them."""

import functools
from collections.abc import Callable
from typing import Any


def put(owner: Any, name: str, act: Callable[..., Any]) -> None:
    """Have calls of a function of ``owner`` go to ``act``, which is given the function first. Idempotent."""
    original = getattr(owner, name)
    if getattr(original, "_nestedfp", False):
        return

    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        return act(original, *args, **kwargs)

    around._nestedfp = True  # type: ignore[attr-defined]
    setattr(owner, name, around)
