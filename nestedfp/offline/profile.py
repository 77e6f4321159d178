"""Statistics of a weight, computed from how often each of its 65,536 bit patterns occurs: one pass, whatever is asked."""

from dataclasses import dataclass, fields
from functools import cache
from math import inf, sqrt
from typing import Any

import numpy as np
import torch

from nestedfp.format import LIMIT, split, upper_to_float

SMALLEST_NORMAL = 2.0**-14  # of FP16
CAST_ELEMENTS = 1 << 20  # compared at a time, so that the temporaries stay small beside the chunk


@dataclass(frozen=True, slots=True)
class Profile:
    """One weight as FP16. Counts are of elements; ``a + b`` is the profile of both together."""

    total: int = 0
    nonfinite: int = 0  # NaN or infinite as stored
    overflowed: int = 0  # finite as stored, infinite as FP16
    flushed: int = 0  # not zero as stored, zero as FP16
    rounded: int = 0  # otherwise changed by the cast to FP16
    outliers: int = 0  # |w| > 1.75
    subnormals: int = 0  # not zero, |w| < 2^-14
    square_sum: float = 0.0
    error_sum: float = 0.0  # squares of the differences to the weight that FP8 mode multiplies with
    minimum: float = inf
    maximum: float = -inf

    @property
    def fp8_error(self) -> float:
        """Error of the weight in FP8 mode relative to the weight, as root mean squares. Listed weights have none."""
        return sqrt(self.error_sum / self.square_sum) if self.square_sum else 0.0

    @property
    def fault(self) -> str | None:
        """Why FP16 cannot hold the weight; None: it can."""
        if self.nonfinite:
            return f"{self.nonfinite} of {self.total} weights are NaN or infinite"
        if self.overflowed:
            return f"{self.overflowed} values beyond FP16's 65504 overflow in the cast to FP16"
        return None

    def __add__(self, other: "Profile") -> "Profile":
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[:-2]}
        return Profile(**sums, minimum=min(self.minimum, other.minimum), maximum=max(self.maximum, other.maximum))

    def as_json(self) -> dict[str, Any]:
        """Return the fields, with shares and the error instead of sums."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        del named["square_sum"], named["error_sum"]
        if not self.total:
            named["minimum"] = named["maximum"] = 0.0
        return {**named, "outlier_share": self.outliers / max(1, self.total), "fp8_error": self.fp8_error}


class Tally:
    """Collects a weight's chunks.

    Args:
        dtype: float16, bfloat16, float32 or float64.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._by_pattern = dtype.itemsize == 2
        self._dtype = dtype if self._by_pattern else torch.float16
        self._counts = np.zeros(1 << 16, np.int64)
        self._cast = Profile()  # of wider types, whose own patterns are not counted

    def add(self, chunk: torch.Tensor) -> None:
        """Count a contiguous chunk of any shape."""
        if not self._by_pattern:
            self._cast += sum(map(_cast_of, torch.split(chunk.reshape(-1), CAST_ELEMENTS)), Profile())
            chunk = chunk.to(torch.float16)
        self._counts += np.bincount(chunk.reshape(-1).view(torch.uint16).numpy(), minlength=1 << 16)

    def profile(self) -> Profile:
        """Return the statistics of all chunks so far."""
        counts, kinds = self._counts, _kinds(self._dtype)
        present = kinds.halves[(counts > 0) & np.isfinite(kinds.halves)]
        found = {name: int(counts @ mask) for name, mask in kinds.masks.items()}
        if not self._by_pattern:
            found |= {name: getattr(self._cast, name) for name in ("nonfinite", "overflowed", "flushed", "rounded")}
        return Profile(
            total=int(counts.sum()),
            **found,
            square_sum=float(counts @ kinds.squares),
            error_sum=float(counts @ kinds.errors),
            minimum=float(present.min(initial=inf)),
            maximum=float(present.max(initial=-inf)),
        )


def _cast_of(part: torch.Tensor) -> Profile:
    """Return what the cast of some elements to FP16 changes."""
    half, finite = part.to(torch.float16), part.isfinite()
    overflowed, flushed = finite & half.isinf(), (part != 0) & (half == 0)
    rounded = (half.to(part.dtype) != part) & finite & ~overflowed & ~flushed
    counts = (int(mask.sum()) for mask in (~finite, overflowed, flushed, rounded))
    return Profile(0, *counts)


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Of each bit pattern of a type: its FP16 value, what it counts for, its square and FP8 mode's squared error."""

    halves: np.ndarray  # [65536] float64
    masks: dict[str, np.ndarray]  # [65536] int64 each, 0 or 1
    squares: np.ndarray  # [65536] float64
    errors: np.ndarray  # [65536] float64


@cache
def _kinds(dtype: torch.dtype) -> _Kinds:
    patterns = torch.arange(1 << 16).to(torch.int16).view(dtype)
    half = patterns.to(torch.float16)
    values, halves = patterns.double().numpy(), half.double().numpy()
    held = np.isfinite(halves)
    outliers = held & (np.abs(halves) > LIMIT)
    flushed = held & (values != 0) & (halves == 0)
    masks = {
        "nonfinite": ~np.isfinite(values),
        "overflowed": np.isfinite(values) & ~held,
        "flushed": flushed,
        "rounded": held & (values != halves) & ~flushed,
        "outliers": outliers,
        "subnormals": held & (halves != 0) & (np.abs(halves) < SMALLEST_NORMAL),
    }
    nested = held & ~outliers
    upper, _lower = split(torch.where(torch.from_numpy(nested), half, 0))
    finite = np.where(held, halves, 0.0)
    errors = np.where(nested, finite - upper_to_float(upper).double().numpy(), 0.0)
    return _Kinds(halves, {name: mask.astype(np.int64) for name, mask in masks.items()}, finite**2, errors**2)
