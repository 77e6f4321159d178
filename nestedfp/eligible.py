"""What takes the NestedFP format, by names: families of models that FP16 cannot serve, layers that never nest, and those that fast
steps compute in FP8. Pure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

# An FP8 mode of these would choose other experts for a token, not round its values.
ROUTERS = ("gate", "router", "shared_expert_gate", "shared_experts_gate")
_EXPERT = re.compile(r"(^|\.)experts\.(\d+)\.\w+$")
# Multi-head latent attention (DeepSeek) reads its weight as plain FP16 and folds it into other products.
LATENT_UP = "kv_b_proj"
# Embeddings and output heads have kernels of their own in vLLM: it would not find their planes.
_OTHER_KERNELS = re.compile(r"(^|\.)(lm_head|wte|wpe|embed\w*|\w+_embed|\w*embeddings?)$")
# The option fp8_layers: other layers compute in FP16 in every step.
ALL_LAYERS = "all"
NAMED_CHOICES: dict[str, tuple[str, ...]] = {ALL_LAYERS: ("*",), "mlp": ("!*attn*", "!*attention*")}
TAKES_OUT = "!"
# Families trained in BF16, with residuals beyond 65504 in some layers: vLLM refuses them in FP16 too.
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


def is_router(module: str) -> bool:
    """Whether a module, ``model.layers.0.mlp.gate`` or ``block_sparse_moe.router.layer`` say, chooses experts."""
    return not _EXPERT.search(module) and any(part in ROUTERS for part in module.split(".")[-2:])


def is_latent_up(module: str) -> bool:
    """Whether a module is the up-projection of latent attention's keys and values."""
    return module.rpartition(".")[2] == LATENT_UP


def experts_of(module: str) -> str | None:
    """Return the layer of experts that a projection of one of them belongs to; None: it is no expert's."""
    found = _EXPERT.search(module)
    return module[: found.start(2) - 1] if found else None


def is_no_linear(module: str) -> bool:
    """Whether a module is an embedding or an output head."""
    return bool(_OTHER_KERNELS.search(module))


def fp8_patterns(choice: Any) -> tuple[str, ...]:
    """Return the patterns of a choice.

    Args:
        choice: "all"; "mlp", all but attention; or patterns of layers' names, as ``nestedfp inspect`` gives them. ``*`` stands for
            any text; ``!`` before a pattern takes its layers out again. The last pattern that matches decides; where the first
            one takes out, all others are in.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(choice, str) and choice in NAMED_CHOICES:
        return NAMED_CHOICES[choice]
    given = list(choice) if isinstance(choice, Sequence) and not isinstance(choice, str) else []
    if not given or not all(isinstance(each, str) and each.removeprefix(TAKES_OUT) for each in given):
        raise ValueError(
            f"fp8_layers: expected one of {list(NAMED_CHOICES)} or a list of patterns such as '*.mlp.*' or '!*.o_proj'; got "
            f"{choice!r:.200}"
        )
    return tuple(given)


def computes_fp8(patterns: Sequence[str], modules: Iterable[str]) -> bool:
    """Return whether a layer computes in FP8, given the names of the modules that are fused into it: where all are chosen."""
    return all(_is_chosen(patterns, module) for module in modules)


def _is_chosen(patterns: Sequence[str], module: str) -> bool:
    chosen = patterns[0].startswith(TAKES_OUT)
    for pattern in patterns:
        if fnmatchcase(module, pattern.removeprefix(TAKES_OUT)):
            chosen = not pattern.startswith(TAKES_OUT)
    return chosen


def require_fp8_layers(choice: Any, layers: Iterable[Sequence[str]]) -> None:
    """Refuse a choice that does not fit a model.

    Args:
        layers: that may have an FP8 mode; of each the names of the modules that are fused into it.

    Raises:
        ValueError: no layer matches one of the patterns; or none, or with "mlp" each, would compute in FP8.
    """
    patterns, known = fp8_patterns(choice), list(layers)
    modules = [module for layer in known for module in layer]
    named = isinstance(choice, str)
    lost = [
        each for each in patterns if not any(fnmatchcase(module, each.removeprefix(TAKES_OUT)) for module in modules)
    ]
    chosen = sum(computes_fp8(patterns, layer) for layer in known)
    if lost and not named:
        said = f"{lost[0]!r} matches none"
    elif not chosen:
        said = f"{choice!r:.200} leaves no layer in FP8 (fused ones are where all their parts are)"
    elif chosen == len(known) and named and choice != ALL_LAYERS:
        said = f"{choice!r} finds no attention"
    else:
        return
    example = f", such as {modules[0]}" if modules else ""
    raise ValueError(
        f"fp8_layers: {said} of {len(modules)} layers{example}; nestedfp inspect MODEL --json FILE names all"
    )
