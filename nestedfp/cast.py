"""What a cast from BF16 to FP16 changes, counted before anyone calls the result exact.

NestedFP stores FP16. BF16 has more range and less precision: values beyond 65504 overflow, tiny ones are flushed to
zero or lose bits as FP16 subnormals, everything between is exact.
"""

from dataclasses import dataclass

import torch

CHUNK = 1 << 20  # elements at a time, so that the temporaries stay small beside the weight


@dataclass(frozen=True, slots=True)
class CastReport:
    """Counts over one tensor."""

    total: int
    nonfinite: int  # NaN or infinite before the cast
    overflowed: int  # finite before the cast, infinite after it: an error for a checkpoint
    flushed: int  # not zero before the cast, zero after it
    rounded: int  # neither, but changed: bits lost in FP16's subnormal range

    @property
    def exact(self) -> bool:
        """Whether the FP16 tensor holds the same values."""
        return not (self.overflowed or self.flushed or self.rounded)


def cast_report(weight: torch.Tensor) -> CastReport:
    """Count what ``weight.to(torch.float16)`` changes.

    Args:
        weight: any shape, bfloat16 (float32 works too).
    """
    nonfinite = overflowed = flushed = rounded = 0
    for part in torch.split(weight.detach().reshape(-1), CHUNK):
        half = part.to(torch.float16)
        finite = part.isfinite()
        overflow = finite & half.isinf()
        flush = (part != 0) & (half == 0)
        changed = half.to(part.dtype) != part
        nonfinite += part.numel() - int(finite.sum())
        overflowed += int(overflow.sum())
        flushed += int(flush.sum())
        rounded += int((changed & finite & ~overflow & ~flush).sum())
    return CastReport(weight.numel(), nonfinite, overflowed, flushed, rounded)
