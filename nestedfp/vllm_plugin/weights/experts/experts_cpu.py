"""Nested experts on a CPU: one operator, opaque to torch.compile, that runs each expert's two products in the mode in force.

A row's result depends neither on the rows beside it nor on how many chose its experts. FP16 mode rounds where vLLM's own grouped
kernel does: gate and up stay FP32, their product is rounded once, and the experts' results are added up in FP32.
"""

from collections.abc import Callable

import torch
import torch.library

from nestedfp.kernels import ops

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda gate: gate * torch.reciprocal(1 + torch.exp(-gate)),  # in the order of vLLM's kernel
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda gate: torch.nn.functional.gelu(gate, approximate="tanh"),
}


class _Stack:
    """One of the two matrices of all experts."""

    def __init__(self, tensors: list[torch.Tensor], n: int, k: int, quantize_activations: bool) -> None:
        self.upper, self.lower, *self.lists = tensors
        self.begins = self.lists.pop().tolist() if self.lists else None
        self.n, self.k, self.quantize = n, k, quantize_activations

    def times(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` [rows, k] float32 times one expert's matrix, [rows, n] float32, in the mode in force."""
        listed: list[torch.Tensor | None] = [None, None, None]
        if self.begins is not None and self.begins[expert] < self.begins[expert + 1]:
            listed = [each[self.begins[expert] : self.begins[expert + 1]] for each in self.lists]
        return ops.linear(x, self.upper[expert], self.lower[expert], None, *listed, self.n, self.k, self.quantize)


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
    (tokens, hidden), chosen, count = x.shape, ids.shape[1], len(w13[0])
    first = _Stack(w13, 2 * intermediate, hidden, quantize_activations)
    second = _Stack(w2, hidden, intermediate, quantize_activations)
    act, wide, flat = ACTIVATIONS[activation], x.float(), ids.flatten().long()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat + 1, minlength=count + 1).cumsum(0).tolist()  # the first are on another rank
    results = torch.zeros(tokens * chosen, hidden)
    for expert in range(count):
        places = order[ends[expert] : ends[expert + 1]]
        if len(places):
            both = first.times(expert, wide[places // chosen])
            rounded = (act(both[:, :intermediate]) * both[:, intermediate:]).to(x.dtype)
            results[places] = second.times(expert, rounded.float())
    parts = results.view(tokens, chosen, hidden)
    total = parts[:, 0] * weights[:, :1]
    for slot in range(1, chosen):
        total = total + parts[:, slot] * weights[:, slot : slot + 1]
    return total.to(x.dtype)


experts.register_fake(lambda x, *_: x.new_empty(x.shape))
