"""Which share of a model's weights has an FP8 mode: said in one line at load, and known to the scheduler."""

from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any

from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from nestedfp.eligible import is_router

logger = init_logger("vllm.nestedfp")

FP16_BYTES = 2
BY_CHOICE = "layers that fp8_layers leaves in FP16"
NAMED = 3  # plain linear layers that the line names


@dataclass
class Coverage:
    """Bytes of weights on one rank, as FP16 would take them.

    Attributes:
        nested: of linear layers that have an FP8 mode.
        experts: of experts that have one.
        plain: of all others, by what they are.
        plain_linear: names of linear layers without an FP8 mode that are no routers.
        layers: linear layers by how they are stored: nested, listed (nested, with weights beyond 1.75 in a list), plain;
            exact are those that the option fp8_layers leaves in FP16.
    """

    nested: int = 0
    experts: int = 0
    plain: Counter[str] = field(default_factory=Counter)
    plain_linear: list[str] = field(default_factory=list)
    layers: Counter[str] = field(default_factory=Counter)

    @property
    def fp8_share(self) -> float:
        """Share of the bytes that have an FP8 mode, 0 to 1."""
        return (self.nested + self.experts) / max(1, self.total)

    @property
    def total(self) -> int:
        """Bytes of all weights."""
        return self.nested + self.experts + self.plain.total()

    @property
    def linear_weights(self) -> int:
        """Weights of all linear layers but experts: each is multiplied once by every token."""
        return (self.nested + self.plain["linear layers"] + self.plain[BY_CHOICE]) // FP16_BYTES

    def line(self) -> str:
        """Return one line for a person."""
        total = max(1, self.total)
        text = f"{self.fp8_share:.1%} of {total / 1e9:.3g} GB of weights have an FP8 mode"
        if parts := [f"{kind} {size / total:.1%}" for kind, size in self.plain.most_common() if size]:
            text += f"; always FP16: {', '.join(parts)}"
        if self.plain_linear:
            more = len(self.plain_linear) - NAMED
            text += f" ({', '.join(self.plain_linear[:NAMED])}{f' and {more} more' if more > 0 else ''})"
        if self.plain["experts"]:
            text += "; tokens of FP8 steps are disclosed as fp8 although the experts compute in FP16"
        return text


def cover(model: Any) -> Coverage:
    """Measure a loaded model."""
    found, seen = Coverage(), set()
    for path, module in model.named_modules():
        name = path.removesuffix(".base_layer")  # which LoRA adapters wrap
        if isinstance(module, LinearBase):
            inputs = getattr(module, "input_size_per_partition", module.input_size)
            outputs = getattr(module, "output_size_per_partition", module.output_size)
            size = inputs * outputs * FP16_BYTES  # a CPU has packed the weight by now, so its tensor says nothing
            if getattr(module, "nestedfp_exact", False):
                found.plain[BY_CHOICE] += size
                found.layers["exact"] += 1
            elif getattr(module, "nestedfp", False):
                found.nested += size
                found.layers["nested" if module.outlier_deltas is None else "listed"] += 1
            else:
                found.plain["routers" if is_router(name) else "linear layers"] += size
                found.layers["plain"] += 1
                if not is_router(name):
                    found.plain_linear.append(name)
            continue
        if getattr(module, "nestedfp_experts", False):
            found.experts += FP16_BYTES * sum(prod(shape) for shape in module.nestedfp_shapes.values())
            continue
        for parameter in module.parameters(recurse=False):
            if id(parameter) in seen:
                continue  # tied embeddings
            seen.add(id(parameter))
            kind = "experts" if isinstance(module, RoutedExperts) else "others"
            found.plain["embeddings" if isinstance(module, VocabParallelEmbedding) else kind] += parameter.nbytes
    return found


def report(model: Any) -> Coverage:
    """Log the line for a loaded model, and return what it says."""
    found = cover(model)
    logger.info("%s", found.line())
    if not found.nested + found.experts:
        logger.warning("no layer of this model has an FP8 mode: every step runs FP16, whatever a directive says")
    return found
