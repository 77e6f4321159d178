"""Families of models whose activations leave FP16's range, which is that of exact answers: by config.json. Pure."""

from collections.abc import Mapping
from typing import Any

# Trained in BF16, with residuals beyond 65504 in some layers: vLLM refuses them in FP16 too.
BEYOND = ("gemma2", "gemma3", "gemma3_text", "glm4")
REMEDY = "its answers in FP16 are wrong; serve the checkpoint in BF16 without nestedfp"


def beyond_fp16(config: Mapping[str, Any]) -> str | None:
    """Return what is wrong with serving a model in FP16 and what to do; None: nothing is known.

    Args:
        config: of config.json.
    """
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, Mapping) else {}):
        if part.get("model_type") in BEYOND:
            return f"activations of a {part['model_type']} model leave FP16's range (65504): {REMEDY}"
    return None
