"""Nested experts on a CPU: one operator, opaque to torch.compile, that runs each expert's two products in the mode in force.

A row's result depends neither on the rows beside it nor on how many chose its experts. FP16 mode rounds where vLLM's own grouped
kernel does: gate and up stay FP32, their product is rounded once, and the experts' results are added up in FP32.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.library

from nestedfp.kernels import ops

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda gate: gate * torch.reciprocal(1 + torch.exp(-gate)),  # in the order of vLLM's kernel
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda gate: torch.nn.functional.gelu(gate, approximate="tanh"),
}

MOST_TOKENS = 512  # at once: their gates and ups take 120 MB in Mixtral 8x7B


def _products(
    x: torch.Tensor, ends: list[int], tensors: list[torch.Tensor], n: int, k: int, quantize_activations: bool
) -> torch.Tensor:
    """Return ``x`` [rows, k] float32 times the matrices of their experts, [rows, n] float32, in the mode in force.

    Args:
        x: an expert's rows behind those of the one before.
        ends: [experts + 1], where the rows of the experts before each end, then those of the last.
        tensors: one of the two matrices of all experts, as ``experts`` has it.
        n, k, quantize_activations: as ``ops.linear`` has them.
    """
    upper, lower, *lists = tensors
    begins = lists.pop().tolist() if lists else [0] * len(ends)
    results = [x.new_empty(0, n)]
    for expert, (first, end) in enumerate(pairwise(ends)):
        if first < end:
            listed: list[torch.Tensor | None] = [None, None, None]
            if begins[expert] < begins[expert + 1]:
                listed = [each[begins[expert] : begins[expert + 1]] for each in lists]
            rows = x[first:end]
            results.append(ops.linear(rows, upper[expert], lower[expert], None, *listed, n, k, quantize_activations))
    return torch.cat(results)


@torch.library.custom_op("nestedfp::experts", mutates_args=(), device_types="cpu")
def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    w13: list[torch.Tensor],
    w2: list[torch.Tensor],
    intermediate: int,
    activation: str,
    quantize_activations: bool,
) -> torch.Tensor:
    """Compute the weighted sum of the experts that each token chose.

    Args:
        x: [tokens, hidden] float16.
        weights, ids: [tokens, chosen] float32 and int32, a token's experts; id -1: on another rank.
        w13, w2: of [2 * intermediate, hidden], gate then up, and [hidden, intermediate] of each expert: planes from ``ops.pack``,
            uint8 [experts, ...] twice; then, where weights lie beyond 1.75, the lists of a ``NestedWeight`` with rows counted
            within an expert, and int64 [experts + 1], the places where each expert's begin.
        activation: a key of ``ACTIVATIONS``.
        quantize_activations: as ``ops.linear`` has it.

    Returns:
        [tokens, hidden], the dtype of ``x``.
    """
    (tokens, hidden), chosen, flat = x.shape, ids.shape[1], ids.flatten().long()
    if tokens > MOST_TOKENS:
        some = zip(*(torch.split(each, MOST_TOKENS) for each in (x, weights, ids)), strict=True)
        return torch.cat([experts(*each, w13, w2, intermediate, activation, quantize_activations) for each in some])
    ends = torch.bincount(flat + 1, minlength=len(w13[0]) + 1).cumsum(0).tolist()
    order = flat.argsort(stable=True)[ends[0] :]  # the first are on another rank
    ends = [end - ends[0] for end in ends]
    both = _products(x.float()[order // chosen], ends, w13, 2 * intermediate, hidden, quantize_activations)
    rounded = (ACTIVATIONS[activation](both[:, :intermediate]) * both[:, intermediate:]).to(x.dtype)
    results = torch.zeros(tokens * chosen, hidden)
    results[order] = _products(rounded.float(), ends, w2, hidden, intermediate, quantize_activations)
    parts = results.view(tokens, chosen, hidden)
    total = parts[:, 0] * weights[:, :1]
    for slot in range(1, chosen):
        total = total + parts[:, slot] * weights[:, slot : slot + 1]
    return total.to(x.dtype)


experts.register_fake(lambda x, *_: x.new_empty(x.shape))
