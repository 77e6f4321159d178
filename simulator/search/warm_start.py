"""What the policy ``predictive`` would have learned from a trace. ``python -m simulator warm-start --trace FILE``.

Runs Holt's method over the trace's arriving tokens as the controller would see them, for several time constants, and
prints the best ones, with the level, trend and noise at the end of the trace, as YAML for the controller's section.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from controller.policies.predictive import Holt, Predictive
from simulator.arguments import make_parser
from workload.azure import Arrival, TraceError, read_trace

LEVELS_S = (1.0, 2.0, 5.0, 10.0, 20.0)
TRENDS_S = (5.0, 10.0, 20.0, 60.0, 300.0)
STEP_S = 0.5  # between two samples of the rate over the last second


@dataclass(frozen=True, slots=True)
class Fit:
    """Time constants, and how well they forecast."""

    level_s: float
    trend_s: float
    error_tokens_per_s: float  # root of the mean squared error of the forecasts
    holt: Holt  # at the end of the trace


def rates(arrivals: Sequence[Arrival], replicas: int) -> np.ndarray:
    """Prompt tokens per second and replica over the last second, every ``STEP_S``. Shape (samples,), float64."""
    at_s = np.array([arrival.at_s for arrival in arrivals])
    total = np.concatenate(([0.0], np.cumsum([arrival.prompt_tokens for arrival in arrivals])))
    ends_s = np.arange(1.0, at_s[-1], STEP_S)
    before = np.searchsorted(at_s, ends_s - 1.0, side="right")
    until = np.searchsorted(at_s, ends_s, side="right")
    per_s: np.ndarray = (total[until] - total[before]) / replicas
    return per_s


def fit(per_s: np.ndarray, forecast_s: float) -> Fit:
    """The time constants with the smallest error of forecasts ``forecast_s`` ahead."""
    ahead = max(1, round(forecast_s / STEP_S))
    return min(
        (_try(per_s, level_s, trend_s, ahead) for level_s in LEVELS_S for trend_s in TRENDS_S),
        key=lambda tried: tried.error_tokens_per_s,
    )


def _try(per_s: np.ndarray, level_s: float, trend_s: float, ahead: int) -> Fit:
    holt, squares, count = Holt(), 0.0, 0
    for i, value in enumerate(per_s):
        holt = holt.seen(float(value), STEP_S, level_s, trend_s)
        if i + ahead < len(per_s) and (expected := holt.ahead(ahead * STEP_S)) is not None:
            squares += (expected - float(per_s[i + ahead])) ** 2
            count += 1
    return Fit(level_s, trend_s, math.sqrt(squares / max(1, count)), holt)


def section(arrivals: Sequence[Arrival], replicas: int, forecast_s: float) -> dict[str, object]:
    """The controller's section of a configuration.

    Raises:
        TraceError: for a trace of less than ten seconds, or one without prompt tokens.
    """
    span_s = arrivals[-1].at_s
    prompt = sum(arrival.prompt_tokens for arrival in arrivals)
    if span_s < 10 or prompt == 0:
        raise TraceError(f"expected a trace of at least 10 s with prompts, got {span_s:g} s and {prompt} prompt tokens")
    best = fit(rates(arrivals, replicas), forecast_s)
    output = sum(arrival.output_tokens for arrival in arrivals)
    policy = {
        "name": "predictive",
        "forecast_s": forecast_s,
        "level_s": best.level_s,
        "trend_s": best.trend_s,
        "warm_start": {
            "prompt_tokens_per_s": round(best.holt.level or 0.0, 1),
            "trend_tokens_per_s2": round(best.holt.trend, 3),
            "noise_tokens_per_s": round(math.sqrt(best.holt.variance), 1),
            "tokens_per_prompt_token": round((prompt + output) / prompt, 4),
        },
    }
    Predictive.model_validate(policy)
    return {"controller": {"policy": policy}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for a trace that cannot be used."""
    parser = make_parser("warm-start", __doc__)
    parser.add_argument("--trace", type=Path, required=True, metavar="CSV", help="Azure trace")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="that share the trace's load (1)")
    parser.add_argument("--forecast", type=float, default=3.0, metavar="S", help="how far ahead, in seconds (3)")
    args = parser.parse_args(arguments)
    if args.replicas < 1 or not 0 < args.forecast <= 60:
        parser.error("expected --replicas >= 1 and 0 < --forecast <= 60")
    try:
        result = section(read_trace(args.trace), args.replicas, args.forecast)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(yaml.safe_dump(result, sort_keys=False), end="")
    return 0
