"""Synthetic loads: calm, a ramp, a plateau, bursts. Deterministic but for the seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workload.azure import Arrival


@dataclass(frozen=True, slots=True)
class Knot:
    """The load at one moment; linear between two knots."""

    at_s: float
    load: float  # of the FP16 capacity


# Calm, a slow rise to a plateau beyond FP16, calm again, two bursts of 20 s (the median of the Azure traces), calm.
CURVE = tuple(
    Knot(at_s, load)
    for at_s, load in [
        (0, 0.35), (40, 0.35), (110, 1.15), (170, 1.15), (180, 0.4), (240, 0.4), (241, 1.3), (261, 1.3), (262, 0.4),
        (320, 0.4), (321, 1.3), (341, 1.3), (342, 0.4), (420, 0.4),
    ]
)  # fmt: skip


def load_at(curve: Sequence[Knot], at_s: float) -> float:
    """The load at a moment."""
    return float(np.interp(at_s, [knot.at_s for knot in curve], [knot.load for knot in curve]))


def arrivals(
    curve: Sequence[Knot], capacity_rps: float, prompt_tokens: int, output_tokens: int, seed: int
) -> Iterator[Arrival]:
    """A Poisson process whose rate follows the curve (thinning, Lewis and Shedler 1979); lengths vary by half."""
    random = np.random.default_rng(seed)
    highest = max(knot.load for knot in curve) * capacity_rps
    at_s = 0.0
    while (at_s := at_s + random.exponential(1 / highest)) < curve[-1].at_s:
        if random.random() * highest > load_at(curve, at_s) * capacity_rps:
            continue
        prompt, output = (int(tokens * random.uniform(0.5, 1.5)) for tokens in (prompt_tokens, output_tokens))
        yield Arrival(at_s, max(1, prompt), max(1, output))
