"""Which linear layers of a checkpoint are nested, which with an outlier list, which stay plain, and why. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from nestedfp.eligible import experts_of, is_latent_up, is_no_linear, is_router
from nestedfp.nested_weight import why_plain
from nestedfp.offline.profile import Profile

# Layers that engines fuse into one: nested together or not at all.
FUSED = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}
NESTED, LISTED, PLAIN = "nested", "listed", "plain"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One matrix of a checkpoint.

    Attributes:
        kind: nested, listed (nested, with weights beyond 1.75 in a list), plain.
        reason: why it is plain.
        is_linear: whether it is the weight of a layer that could be nested by its name.
    """

    kind: str
    reason: str = ""
    is_linear: bool = True


def gemm_of(module: str) -> tuple[str, str]:
    """Return the fused layer that a module is part of and its type: ``("model.layers.0.mlp.gate_up", "gate_up")``.

    All experts of a layer are one.
    """
    if (experts := experts_of(module)) is not None:
        return experts, "experts"
    stem, dot, leaf = module.rpartition(".")
    kind = next((name for name, parts in FUSED.items() if leaf in parts), leaf)
    return stem + dot + kind, kind


def judge(shapes: Mapping[str, tuple[int, ...]], profiles: Mapping[str, Profile]) -> dict[str, Verdict]:
    """Return a verdict by module for each matrix that is some module's ``.weight``.

    Args:
        shapes: of all tensors, by name.
        profiles: by name.
    """
    verdicts: dict[str, Verdict] = {}
    for modules in _layers(shapes):
        left_out = [module for module in modules if _never(module)]
        verdicts |= {module: Verdict(PLAIN, _never(module), False) for module in left_out}
        rest = [module for module in modules if module not in verdicts]
        if rest and left_out:
            verdicts |= dict.fromkeys(rest, Verdict(PLAIN, f"fused with {left_out[0]}, which stays plain"))
        elif rest:
            verdicts |= _by_values({module: profiles[f"{module}.weight"] for module in rest})
    return verdicts


def candidates(shapes: Mapping[str, tuple[int, ...]]) -> list[list[str]]:
    """Return the modules that may be nested by name and shape, those of one fused layer together."""
    return [modules for modules in _layers(shapes) if not any(map(_never, modules))]


def _layers(shapes: Mapping[str, tuple[int, ...]]) -> list[list[str]]:
    """Return the modules whose weight is a matrix, those of one fused layer together."""
    layers: dict[str, list[str]] = {}
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        if module != name and len(shape) == 2:
            layers.setdefault(gemm_of(module)[0], []).append(module)
    return list(layers.values())


def _by_values(parts: Mapping[str, Profile]) -> dict[str, Verdict]:
    """Judge the parts of one fused layer as the loader does: by the weights of the whole layer."""
    whole = sum(parts.values(), Profile())
    if reason := why_plain(whole.total, whole.outliers, whole.nonfinite + whole.overflowed):
        return dict.fromkeys(parts, Verdict(PLAIN, reason))
    return {module: Verdict(LISTED if part.outliers else NESTED) for module, part in parts.items()}


def _never(module: str) -> str:
    if is_router(module):
        return "it chooses experts"
    if is_latent_up(module):
        return "latent attention reads it as plain FP16"
    return "no linear layer: an embedding or an output head" if is_no_linear(module) else ""
