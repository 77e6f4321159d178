"""How loaded the replicas are, and would be in the other precision. Shared by the adaptive policies. Pure.

Loads are tokens per second and replica, prompt and completion together. The parts:

* Offered load: prompt tokens that arrive, times the tokens computed per prompt token (learned over minutes, because
  answers come seconds after their prompts). Smoothed twice: ``fast`` sees a burst, ``slow`` its end.
* Step time: a step of ``n`` tokens takes ``base + slope * n``; both are learned for each precision by least squares with
  forgetting, from seconds in which a replica computed all the time in that precision alone. In a steady state the
  batch grows until ``step = base / (1 - slope * load)``, so that the load at which steps take as long as the TPOT
  objective is ``(1 - base / tpot) / slope``: the capacity, but at most ``max_utilisation / slope``, the rest being
  what arrivals' randomness needs. Where even a step of one token takes longer than the objective no load is low enough;
  ``MIN_UTILISATION`` then is the capacity, so that idle replicas do not count as overloaded.
* Saturation: while a queue stands (it did not drain for a whole window, the criterion of CoDel, RFC 8289) the tokens
  computed per second are all that the replica can, whatever its limit is. The smaller of both counts.

A precision never seen is taken from the other one by the ratio of step times, learned or configured.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from controller.policies.base import Observation
from controller.policies.signals.sums import add_up
from nestedfp.modes import Mode
from workload.frozen import FrozenModel

LARGEST_LOAD = 99.0  # what a load is reported as when next to nothing can be served
MIN_PROMPT_TOKENS = 1.0  # per replica: fewer tell no ratio
LONGEST_STEP_S = 60.0  # a longer one is no step
MIN_SAMPLES_S = 5.0  # seconds of observation before a line is drawn through them
MIN_SPREAD = 0.05  # of the step sizes, relative to their mean: below it the slope is noise
MIN_UTILISATION = 0.1  # counts as served however tight the TPOT objective: below it, turning requests away helps nobody
MAX_GAP_S = 5.0  # a longer pause between two decisions counts as this long


class LoadSettings(FrozenModel):
    """Parameters of the load estimate."""

    fp16_step_ratio: Annotated[float, Field(ge=1, le=4)] = 1.6  # FP16 step time / FP8 step time until it is learned
    max_utilisation: Annotated[float, Field(gt=0, le=1)] = 0.85  # of the rate at which a replica computes tokens
    fast_s: Annotated[float, Field(gt=0)] = 3.0  # time constant of the load that enters FP8
    slow_s: Annotated[float, Field(gt=0)] = 10.0  # of the load that must have fallen before FP8 is left
    learn_s: Annotated[float, Field(gt=0)] = 120.0  # memory of step times and of tokens per prompt token
    capacity_memory_s: Annotated[float, Field(ge=0)] = 300.0  # memory of what was computed while a queue stood


@dataclass(frozen=True, slots=True)
class Line:
    """Sums of a weighted least squares fit of step duration (ms) over tokens in the step."""

    seconds: float = 0.0  # of observation, after forgetting
    tokens: float = 0.0
    ms: float = 0.0
    tokens_tokens: float = 0.0
    tokens_ms: float = 0.0

    def seen(self, tokens: float, ms: float, dt_s: float, keep: float) -> "Line":
        """Forget a little and add a sample that held for ``dt_s``."""
        return Line(
            keep * self.seconds + dt_s,
            keep * self.tokens + dt_s * tokens,
            keep * self.ms + dt_s * ms,
            keep * self.tokens_tokens + dt_s * tokens * tokens,
            keep * self.tokens_ms + dt_s * tokens * ms,
        )

    def fit(self) -> tuple[float, float] | None:
        """(base_ms, ms per token); None while too little, or nothing but the same, has been seen."""
        if self.seconds < MIN_SAMPLES_S:
            return None
        mean_tokens, mean_ms = self.tokens / self.seconds, self.ms / self.seconds
        spread = self.tokens_tokens / self.seconds - mean_tokens**2
        if spread <= (MIN_SPREAD * mean_tokens) ** 2:
            return None
        slope = (self.tokens_ms / self.seconds - mean_tokens * mean_ms) / spread
        # A step has some fixed cost and each token some of its own; noise may say otherwise.
        slope = min(slope, mean_ms / mean_tokens)
        return None if slope <= 0 else (mean_ms - slope * mean_tokens, slope)

    def at(self, tokens: float) -> float | None:
        """Duration in ms of a step of so many tokens; None without a fit."""
        fit = self.fit()
        return None if fit is None else fit[0] + fit[1] * tokens


@dataclass(frozen=True, slots=True)
class Saturation:
    """Tokens per second that a replica computed while its queue stood."""

    tokens_per_s: float
    seen_at_s: float


@dataclass(frozen=True, slots=True)
class LoadState:
    """What the estimate remembers; of fixed size whatever the number of replicas."""

    at_s: float | None = None
    prompt_fast: float | None = None  # arriving prompt tokens per second and replica
    prompt_slow: float | None = None
    computed: float = 0.0  # tokens, decaying sums: their quotient is the tokens computed per prompt token
    admitted: float = 0.0
    fp16: Line = Line()
    fp8: Line = Line()
    fp16_full: Saturation | None = None
    fp8_full: Saturation | None = None


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """The estimate. None: not known."""

    offered: float | None  # tokens per second and replica, the larger of fast and slow
    prompt_tokens_per_s: float | None  # arriving now, no EWMA, per replica
    tokens_per_prompt_token: float  # 1 while nothing has been seen
    has_ratio: bool  # whether it has been learned
    fp16_capacity: float | None
    fp8_capacity: float | None
    step_ratio: float  # FP16 step time / FP8 step time

    @property
    def fp16_load(self) -> float | None:
        """Offered load over the FP16 capacity."""
        return over(self.offered, self.fp16_capacity)

    @property
    def fp8_load(self) -> float | None:
        """Offered load over the FP8 capacity."""
        return over(self.offered, self.fp8_capacity)


def over(tokens_per_s: float | None, capacity: float | None) -> float | None:
    """A load, bounded; None when either part is unknown."""
    if tokens_per_s is None or capacity is None:
        return None
    if tokens_per_s <= 0:
        return 0.0
    return LARGEST_LOAD if capacity * LARGEST_LOAD <= tokens_per_s else tokens_per_s / capacity


def update(observation: Observation, state: LoadState, settings: LoadSettings) -> tuple[LoadEstimate, LoadState]:
    """Learn from what is seen and estimate."""
    now_s, sums = observation.now_s, add_up(observation.replicas)
    dt_s = 0.0 if state.at_s is None else min(MAX_GAP_S, max(0.0, now_s - state.at_s))
    if sums.replicas == 0:
        return _estimate(observation, None, state, settings), state
    keep = math.exp(-dt_s / settings.learn_s)
    prompt = sums.prompt / sums.replicas
    learned = LoadState(
        at_s=now_s,
        prompt_fast=ewma(state.prompt_fast, prompt, dt_s, settings.fast_s),
        prompt_slow=ewma(state.prompt_slow, prompt, dt_s, settings.slow_s),
        computed=keep * state.computed + dt_s * sums.computed / sums.replicas,
        admitted=keep * state.admitted + dt_s * sums.admitted / sums.replicas,
        fp16=_learn_line(state.fp16, sums.busy[Mode.FP16], dt_s, keep),
        fp8=_learn_line(state.fp8, sums.busy[Mode.FP8], dt_s, keep),
        fp16_full=_learn_full(state.fp16_full, sums.full[Mode.FP16], now_s, dt_s, settings),
        fp8_full=_learn_full(state.fp8_full, sums.full[Mode.FP8], now_s, dt_s, settings),
    )
    return _estimate(observation, prompt, learned, settings), learned


def ewma(before: float | None, value: float, dt_s: float, time_constant_s: float) -> float:
    """Exponential smoothing for samples at irregular times."""
    if before is None:
        return value
    return before + (1 - math.exp(-dt_s / time_constant_s)) * (value - before)


def _learn_line(line: Line, busy: tuple[int, float, float], dt_s: float, keep: float) -> Line:
    replicas, steps, tokens = busy
    if replicas == 0 or steps * LONGEST_STEP_S <= replicas:
        return line
    return line.seen(tokens / steps, 1e3 * replicas / steps, dt_s, keep)


def _learn_full(
    before: Saturation | None, full: tuple[int, float], now_s: float, dt_s: float, settings: LoadSettings
) -> Saturation | None:
    replicas, tokens = full
    if replicas == 0 or tokens <= 0:
        forgotten = before is not None and now_s - before.seen_at_s > settings.capacity_memory_s
        return None if forgotten else before
    mean = tokens / replicas
    return Saturation(ewma(before.tokens_per_s if before else None, mean, dt_s, settings.fast_s), now_s)


def _estimate(observation: Observation, prompt: float | None, state: LoadState, settings: LoadSettings) -> LoadEstimate:
    has_ratio = state.admitted > MIN_PROMPT_TOKENS
    ratio = state.computed / state.admitted if has_ratio else 1.0
    known = state.prompt_fast is not None and state.prompt_slow is not None
    offered = max(state.prompt_fast or 0.0, state.prompt_slow or 0.0) * ratio if known else None
    step_ratio = _step_ratio(state, settings)
    tpot_ms = observation.slo.tpot_ms
    fp16 = _capacity(state.fp16, state.fp16_full, tpot_ms, settings)
    fp8 = _capacity(state.fp8, state.fp8_full, tpot_ms, settings)
    if fp8 is not None and state.fp16_full is None:
        # What FP16 has not been seen to do, it does at most so well as FP8 has.
        fp16 = fp8 / step_ratio if fp16 is None else min(fp16, fp8)
    if fp8 is None and fp16 is not None:
        fp8 = fp16 * step_ratio
    return LoadEstimate(
        offered=offered,
        prompt_tokens_per_s=prompt,
        tokens_per_prompt_token=ratio,
        has_ratio=has_ratio,
        fp16_capacity=fp16,
        fp8_capacity=fp8,
        step_ratio=step_ratio,
    )


def _step_ratio(state: LoadState, settings: LoadSettings) -> float:
    """FP16 step time over FP8 step time for steps as FP8 has lately seen them."""
    tokens = state.fp8.tokens / state.fp8.seconds if state.fp8.seconds > 0 else 0.0
    fp16_ms, fp8_ms = state.fp16.at(tokens), state.fp8.at(tokens)
    if fp16_ms is None or fp8_ms is None or fp8_ms <= 0:
        return settings.fp16_step_ratio
    return min(4.0, max(1.0, fp16_ms / fp8_ms))


def _capacity(line: Line, full: Saturation | None, tpot_ms: float, settings: LoadSettings) -> float | None:
    """Tokens per second that a replica serves within the TPOT objective; None when nothing is known."""
    known = [] if full is None else [settings.max_utilisation * full.tokens_per_s]
    if (fit := line.fit()) is not None:
        base_ms, slope_ms = fit
        utilisation = min(settings.max_utilisation, max(MIN_UTILISATION, 1 - base_ms / tpot_ms))
        known.append(1e3 / slope_ms * utilisation)
    return min(known, default=None)
