"""One layer's weight in the NestedFP format: planes plus the list of its few weights beyond 1.75.

Such a weight is clamped to +-1.75 in the planes, and the rest of it is kept as ``(row, col, delta)`` with
``clamped + delta == w`` exactly in FP32. Both modes add ``x[:, col] * delta`` to output ``row``, so FP16 mode
multiplies the original weights and FP8 mode keeps its outliers at full precision. Nothing is dropped silently: a layer
that the format does not suit comes back as ``NotNested`` with the reason.
"""

from dataclasses import dataclass

import torch

from nestedfp.format import LIMIT, OUTLIER_LIMIT_FRACTION
from nestedfp.kernels import ops

ROWS = 4096  # looked through at a time


@dataclass(frozen=True, slots=True)
class NestedWeight:
    """A weight [N, K] as planes. The outlier lists are None when there are no outliers."""

    upper: torch.Tensor  # [N, K] uint8
    lower: torch.Tensor  # [N, K] uint8
    outlier_rows: torch.Tensor | None  # [outliers] int32, ascending
    outlier_cols: torch.Tensor | None  # [outliers] int32, ascending within a row
    outlier_deltas: torch.Tensor | None  # [outliers] float32

    @property
    def outliers(self) -> int:
        """How many weights are listed."""
        return 0 if self.outlier_rows is None else self.outlier_rows.numel()


@dataclass(frozen=True, slots=True)
class NotNested:
    """A weight that stays plain FP16, and why."""

    reason: str  # "nonfinite: ..." or "outliers: ...", with the counts
    outliers: int  # finite weights with |w| > 1.75
    nonfinite: int  # infinities and NaNs


def why_plain(total: int, outliers: int, nonfinite: int) -> str:
    """Return why a weight of that many elements stays plain FP16; empty: it can be nested."""
    if nonfinite:
        return f"nonfinite: {nonfinite} of {total} weights are NaN or infinite"
    if outliers > OUTLIER_LIMIT_FRACTION * total:
        return f"outliers: {outliers} of {total} weights have |w| > {LIMIT}, more than {OUTLIER_LIMIT_FRACTION:.1%}"
    return ""


def nest(weight: torch.Tensor) -> NestedWeight | NotNested:
    """Convert one layer's weight in one pass at memory speed; allocates the two planes and nothing else of that size.

    Args:
        weight: [N, K] float16 on the CPU.

    Returns:
        ``NestedWeight``, or ``NotNested`` when the weight holds a NaN or an infinity or when more than 0.1 % of it is
        beyond 1.75. The caller decides what that means: a checkpoint loader refuses the former and keeps the latter
        plain.

    Raises:
        RuntimeError: for another dtype, device or number of dimensions.
    """
    found = nest_together(weight)
    return found if isinstance(found, NotNested) else found[0]


def nest_together(*weights: torch.Tensor) -> list[NestedWeight] | NotNested:
    """Convert several weights, which are judged as one: all of them are nested, or none. As ``nest`` otherwise."""
    plain = [weight.detach().contiguous() for weight in weights]
    parts = [ops.split(weight) for weight in plain]
    outliers, nonfinite = torch.stack([counts for *_, counts in parts]).sum(0).tolist()
    if reason := why_plain(sum(weight.numel() for weight in plain), outliers, nonfinite):
        return NotNested(reason, outliers, nonfinite)
    nested = []
    for weight, (upper, lower, counts) in zip(plain, parts, strict=True):
        nested.append(NestedWeight(upper, lower, *(_listed(weight) if counts[0] else (None, None, None))))
    return nested


def _listed(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows, columns and deltas of the weights beyond 1.75, in row-major order."""
    found = [torch.nonzero(part.abs() > LIMIT) for part in torch.split(weight, ROWS)]
    rows = torch.cat([place[:, 0] + i * ROWS for i, place in enumerate(found)])
    cols = torch.cat([place[:, 1] for place in found])
    values = weight[rows, cols].float()
    return rows.int(), cols.int(), values - values.clamp(-LIMIT, LIMIT)
