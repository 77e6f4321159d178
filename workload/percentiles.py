"""Percentiles of a set of measurements. Pure; numpy only."""

from collections.abc import Iterable

import numpy as np

from workload.frozen import FrozenModel


class Percentiles(FrozenModel):
    """None when there was nothing to measure."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    def text(self, digits: int) -> str:
        """Return all three for a table."""
        return "/".join("?" if each is None else f"{each:.{digits}f}" for each in (self.p50, self.p90, self.p99))


def percentiles(values: Iterable[float]) -> Percentiles:
    """p50, p90 and p99 by linear interpolation."""
    data = np.fromiter(values, dtype=np.float64)
    if not len(data):
        return Percentiles()
    p50, p90, p99 = np.percentile(data, [50, 90, 99])
    return Percentiles(p50=float(p50), p90=float(p90), p99=float(p99))
