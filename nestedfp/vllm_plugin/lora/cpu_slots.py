"""Rows without a LoRA adapter beside rows with one, on a CPU.

vLLM gives such rows the index -1. Its operators for GPUs leave them out, those for CPUs take the last slot's adapter. Here every
layer has one slot more, which stays zero.
"""

from functools import partial
from typing import Any

from nestedfp.hooks import around


def install() -> None:
    """Wrap the functions that make layers with adapters. Idempotent."""
    from vllm.lora import model_manager

    for name, place in (("from_layer", 1), ("from_layer_logits_processor", 2)):
        around.put(model_manager, name, partial(_with_empty_slot, place))


def _with_empty_slot(place: int, original: Any, *args: Any) -> Any:
    return original(*args[:place], args[place] + 1, *args[place + 1 :])
