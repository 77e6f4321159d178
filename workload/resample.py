"""The load of a simulation: arrivals of a trace or generated ones, brought to a rate. Pure and seeded.

Bringing a trace to another rate keeps its shape in time. Below its own rate each request is kept with the same
probability. Above it each request stands for several customers who behave alike: it is repeated, the whole part of the
ratio for sure and the rest by chance, and each copy moved by up to ``JITTER_S``, which is short against the bursts
(20 s at the median). So relative bursts stay what they were, as they would in a larger cluster whose customers are busy
at the same times. A longer jitter makes them independent of each other and the load smoother.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from workload.shape import cut_window
from workload.traces import Arrival, TraceError

JITTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a simulation, and how long they take to come."""

    arrivals: tuple[Arrival, ...]
    span_s: float

    @property
    def rate_rps(self) -> float:
        return len(self.arrivals) / self.span_s


def prepare(arrivals: Sequence[Arrival], start_s: float, duration_s: float | None) -> Load:
    """Cut a window and repair what no engine can compute; requests that are too long stay and will be refused.

    Raises:
        TraceError: when the window holds no request.
    """
    window = cut_window(arrivals, start_s, duration_s)
    kept = tuple(
        Arrival(arrival.at_s, max(1, arrival.prompt_tokens), max(1, arrival.output_tokens)) for arrival in window
    )
    # The span of a whole trace ends half a mean pause after its last arrival: a rate needs an end.
    span_s = duration_s or kept[-1].at_s * (1 + 0.5 / len(kept)) or 1.0
    return Load(kept, span_s)


def resampled(load: Load, rate_rps: float, seed: int) -> Load:
    """The same load at another mean rate, the same shape in time but for ``JITTER_S``."""
    ratio = rate_rps / load.rate_rps
    rng = np.random.default_rng([0x10AD, seed])
    whole, part = int(ratio), ratio % 1
    copies = whole + (rng.random(len(load.arrivals)) < part)
    indices = np.repeat(np.arange(len(load.arrivals)), copies)
    if not len(indices):
        raise TraceError(f"a rate of {rate_rps:g} requests/s leaves none of {len(load.arrivals)}; raise --load")
    times_s = np.array([arrival.at_s for arrival in load.arrivals])[indices]
    if ratio > 1:
        # What leaves the window at one end comes in at the other: kept at the ends, the copies would pile up there.
        times_s = (times_s + rng.uniform(-JITTER_S, JITTER_S, len(times_s))) % load.span_s
    order = np.argsort(times_s, kind="stable")
    arrivals = load.arrivals
    scaled = tuple(
        Arrival(at_s, arrivals[index].prompt_tokens, arrivals[index].output_tokens)
        for at_s, index in zip(times_s[order].tolist(), indices[order].tolist(), strict=True)
    )
    return Load(scaled, load.span_s)


def mean_lengths(arrivals: Sequence[Arrival]) -> tuple[float, float]:
    """Mean prompt and output tokens."""
    return fmean(a.prompt_tokens for a in arrivals), fmean(a.output_tokens for a in arrivals)
