"""From a long trace to the load of one run: window, lengths, rate. Pure and deterministic.

The order is: choose the window, fit the token lengths to the model, and, once the capacity of the service is known,
bring the window to the wanted mean rate. A lower rate is reached by thinning (each request is kept with the same
probability, so the bursts stay where they were); a higher one by squeezing a longer window into the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from workload.traces import Arrival, TraceError

BURST_S = 20.0  # length of the windows in which bursts are counted


@dataclass(frozen=True, slots=True)
class Lengths:
    """How token lengths are fitted to the model."""

    context_tokens: int  # prompt and output together never exceed it; two at least
    scale: float | None = None  # None: 1, or as much less as lets 99 % of the requests fit the context
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None


def peak_rate_rps(arrivals: Sequence[Arrival], duration_s: float) -> float:
    """Highest rate over any ``BURST_S`` seconds (one that starts at an arrival)."""
    burst_s = min(BURST_S, duration_s)
    times_s = np.array([arrival.at_s for arrival in arrivals])
    if not len(times_s):
        return 0.0
    counts = np.searchsorted(times_s, times_s + burst_s) - np.arange(len(times_s))
    return float(counts.max()) / burst_s


def most_bursty_start_s(arrivals: Sequence[Arrival], duration_s: float, burst_s: float = BURST_S) -> float:
    """Start of the window whose largest burst stands out most: its rate over the mean rate of the window.

    Only bursts in the middle half of the window count, so that a run shows the service before and after. Starts are
    tried every 10 s. Short windows count shorter bursts, a quarter of their length. A trace no longer than the window
    starts at 0.
    """
    burst_s = min(burst_s, duration_s / 4)
    times_s = np.array([arrival.at_s for arrival in arrivals])
    best_start_s, best_ratio = 0.0, 0.0
    for start_s in np.arange(0.0, max(times_s[-1] - duration_s, 0.0) + 1e-9, 10.0):
        total = np.searchsorted(times_s, start_s + duration_s) - np.searchsorted(times_s, start_s)
        begins_s = np.arange(start_s + 0.25 * duration_s, start_s + 0.75 * duration_s - burst_s + 1e-9, 1.0)
        if not total or not len(begins_s):
            continue
        counts = np.searchsorted(times_s, begins_s + burst_s) - np.searchsorted(times_s, begins_s)
        ratio = float(counts.max()) / burst_s / (float(total) / duration_s)
        if ratio > best_ratio:
            best_start_s, best_ratio = float(start_s), ratio
    return best_start_s


def cut_window(arrivals: Sequence[Arrival], start_s: float, duration_s: float | None) -> tuple[Arrival, ...]:
    """The arrivals of one window, with the window's start as 0 s; without a duration it lasts to the end of the trace.

    Raises:
        TraceError: when the window holds no request.
    """
    end_s = np.inf if duration_s is None else start_s + duration_s
    window = tuple(
        replace(arrival, at_s=arrival.at_s - start_s) for arrival in arrivals if start_s <= arrival.at_s < end_s
    )
    if not window:
        raise TraceError(
            f"the window of {'all' if duration_s is None else f'{duration_s:g}'} s from {start_s:g} s holds no request "
            f"(the trace ends at {arrivals[-1].at_s:.0f} s); choose another --start"
        )
    return window


def fit_lengths(arrivals: Sequence[Arrival], lengths: Lengths) -> tuple[tuple[Arrival, ...], float]:
    """Scale and cap the token lengths; returns the arrivals and the scale that was used."""
    scale = lengths.scale
    if scale is None:
        p99_tokens = float(np.percentile([a.prompt_tokens + a.output_tokens for a in arrivals], 99))
        scale = min(1.0, lengths.context_tokens / max(p99_tokens, 1.0))
    max_output = min(lengths.max_output_tokens or lengths.context_tokens, max(lengths.context_tokens // 2, 1))
    fitted = []
    for arrival in arrivals:
        output = min(max(round(arrival.output_tokens * scale), 1), max_output)
        room = lengths.context_tokens - output
        max_prompt = min(lengths.max_prompt_tokens or room, room)
        prompt = min(max(round(arrival.prompt_tokens * scale), 1), max_prompt)
        block = max(round(arrival.block_tokens * scale), 1) if arrival.blocks else 0
        fitted.append(replace(arrival, prompt_tokens=prompt, output_tokens=output, block_tokens=block))
    return tuple(fitted), scale


@dataclass(frozen=True, slots=True)
class Selection:
    """The arrivals of one run, and the part of the trace that they come from."""

    arrivals: tuple[Arrival, ...]
    start_s: float
    span_s: float  # longer than the run when the trace had to be squeezed


def select_at_rate(
    arrivals: Sequence[Arrival], start_s: float | None, duration_s: float, rate_rps: float, seed: int
) -> Selection:
    """A window at a mean rate of ``rate_rps``; exactly round(rate x duration) requests, chosen with the seed.

    Choosing that many without replacement is thinning with its count fixed, so the mean rate does not depend on the
    draw. When a window of ``duration_s`` holds too few, a longer one is squeezed. Without a start the window with the
    most pronounced burst is taken; a given start moves to an earlier one where the trace would end.
    """
    count = round(rate_rps * duration_s)
    if count < 1:
        raise TraceError(
            f"{rate_rps:g} requests/s for {duration_s:g} s is less than one request; raise --rate or --duration"
        )
    span_s = duration_s
    while True:
        if start_s is None:
            begin_s = most_bursty_start_s(arrivals, span_s, BURST_S * span_s / duration_s)
        else:
            begin_s = start_s if span_s == duration_s else max(min(start_s, arrivals[-1].at_s - span_s), 0.0)
        window = cut_window(arrivals, begin_s, span_s)
        if len(window) >= count:
            break
        if span_s > arrivals[-1].at_s:
            raise TraceError(
                f"the trace holds {len(arrivals)} requests, {count} are needed for {rate_rps:g} requests/s over "
                f"{duration_s:g} s; lower --rate or --duration, or give a longer trace"
            )
        span_s *= 1.1
    squeeze = duration_s / span_s
    kept = np.sort(np.random.default_rng([0x7417, seed]).choice(len(window), size=count, replace=False))
    chosen = (window[index] for index in kept)
    return Selection(tuple(replace(each, at_s=each.at_s * squeeze) for each in chosen), begin_s, span_s)
