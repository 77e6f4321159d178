"""Rows without a LoRA adapter beside rows with one, on a CPU.

vLLM gives such rows the index -1. Its operators for GPUs leave them out, those for CPUs take the last slot's adapter. Here every
layer has one slot more, which stays zero.
"""

import functools
from typing import Any


def install() -> None:
    """Wrap the functions that make layers with adapters. Idempotent."""
    from vllm.lora import model_manager

    for name, place in (("from_layer", 1), ("from_layer_logits_processor", 2)):
        original = getattr(model_manager, name)
        if not getattr(original, "_nestedfp", False):
            setattr(model_manager, name, _with_empty_slot(original, place))


def _with_empty_slot(original: Any, place: int) -> Any:
    @functools.wraps(original)
    def make(*args: Any) -> Any:
        return original(*args[:place], args[place] + 1, *args[place + 1 :])

    make._nestedfp = True  # type: ignore[attr-defined]
    return make
