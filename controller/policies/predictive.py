"""Acts before the burst is there: a forecast of arriving tokens against what FP16 is known to serve. Pure.

Holt's linear method (a level and a trend, each smoothed exponentially) on arriving prompt tokens per second and
replica, with smoothing weights ``1 - exp(-dt / time constant)``, so that samples may come at any times. The forecast
``horizon_s`` ahead, plus ``margin`` standard deviations of the errors of one-step forecasts, over the FP16 capacity of
``load`` gives the forecast load: FP8 above ``enter_load``, FP16 again below ``leave_load`` when nothing of
``returning`` speaks against it. What no forecast sees, a prompt of unusual length or a slow machine, enters FP8 by the
dangers that ``slo_feedback`` looks at; without a known capacity they alone decide.

A new controller knows no level, no noise and no capacity. ``warm_start`` gives it those of a trace;
``python -m simulator warm-start --trace FILE`` prints it.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from controller.policies import returning
from controller.policies.base import Decision, Observation, PolicySpec
from controller.policies.signals import load
from nestedfp.modes import DirectiveMode
from workload.frozen import FrozenModel


class WarmStart(FrozenModel):
    """What a controller that has run for long would know. Tokens are per replica."""

    prompt_tokens_per_s: Annotated[float, Field(ge=0)]
    trend_tokens_per_s2: float = 0.0
    noise_tokens_per_s: Annotated[float, Field(ge=0)] = 0.0  # standard deviation of the forecast errors
    tokens_per_prompt_token: Annotated[float, Field(gt=0)] = 1.0
    fp16_capacity_tokens_per_s: Annotated[float, Field(gt=0)] | None = None  # until it has been learned


class Predictive(returning.ReturnSettings):
    """Parameters of the policy ``predictive``."""

    name: Literal["predictive"] = "predictive"
    forecast_s: Annotated[float, Field(ge=0, le=60)] = 3.0  # how far ahead
    level_s: Annotated[float, Field(gt=0)] = 5.0  # time constant of the level
    trend_s: Annotated[float, Field(gt=0)] = 20.0  # of the trend
    margin: Annotated[float, Field(ge=0)] = 0.5  # standard deviations of forecast errors on top
    enter_load: Annotated[float, Field(gt=0)] = 0.8  # of the FP16 capacity
    leave_load: Annotated[float, Field(gt=0)] = 0.7
    warm_start: WarmStart | None = None

    @model_validator(mode="after")
    def _leave_load_below_enter_load(self) -> Self:
        if self.leave_load >= self.enter_load:
            raise ValueError(
                f"expected leave_load < enter_load, got {self.leave_load:g} and {self.enter_load:g}; "
                "equal or crossed bands would flip at every step"
            )
        return self


@dataclass(frozen=True, slots=True)
class Holt:
    """Level and trend of a rate, and the variance of one-step forecast errors."""

    level: float | None = None
    trend: float = 0.0  # per second
    variance: float = 0.0

    def seen(self, value: float, dt_s: float, level_s: float, trend_s: float) -> "Holt":
        """Take a sample ``dt_s`` after the last one."""
        if self.level is None:
            return Holt(value)
        if dt_s <= 0:
            return self
        expected = self.level + self.trend * dt_s
        error = value - expected
        level = expected + (1 - math.exp(-dt_s / level_s)) * error
        weight = 1 - math.exp(-dt_s / trend_s)
        trend = self.trend + weight * ((level - self.level) / dt_s - self.trend)
        return Holt(level, trend, self.variance + weight * (error * error - self.variance))

    def ahead(self, horizon_s: float, margin: float = 0.0) -> float | None:
        """Forecast, never negative; None before the first sample."""
        if self.level is None:
            return None
        return max(0.0, self.level + self.trend * horizon_s + margin * math.sqrt(self.variance))


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers."""

    memory: returning.Memory
    holt: Holt
    capacity: float | None  # of FP16, tokens per second and replica: of the warm start until it has been learned


def decide(observation: Observation, state: State, config: Predictive) -> tuple[Decision, State]:
    """Compare the forecast with the capacity, and heed present dangers."""
    view, memory = returning.look(observation, state.memory, config)
    holt = state.holt
    if view.load.prompt_tokens_per_s is not None:
        holt = holt.seen(view.load.prompt_tokens_per_s, view.dt_s, config.level_s, config.trend_s)
    expected = holt.ahead(config.forecast_s, config.margin)
    per_prompt = view.load.tokens_per_prompt_token
    if config.warm_start is not None and not view.load.has_ratio:
        per_prompt = config.warm_start.tokens_per_prompt_token
    capacity = config.calm_capacity(view.load) or state.capacity
    forecast = load.over(None if expected is None else expected * per_prompt, capacity)

    inputs, mode = view.inputs, DirectiveMode.FP8
    if forecast is not None:
        inputs = (*inputs, ("forecast_load", forecast))
    if forecast is not None and forecast > config.enter_load:
        reason = "forecast_over_capacity"
    elif observation.current is not DirectiveMode.FP8:
        reason = view.danger
        if not reason:
            mode, reason = config.calm_mode, view.calm_reason("forecast_within_capacity")
    elif forecast is not None and forecast > config.leave_load:
        reason = "forecast_over_leave"
    else:
        mode, reason, values = returning.leave_fp8(view, memory, observation, config)
        inputs += values
    decision = returning.decision(view, observation, config, mode, reason, inputs)
    return decision, State(returning.proposed(memory, mode), holt, capacity)


def start(config: Predictive) -> tuple[Decision, State]:
    """FP16, with what the warm start knows."""
    warm = config.warm_start
    holt, capacity = Holt(), None
    if warm is not None:
        holt = Holt(warm.prompt_tokens_per_s, warm.trend_tokens_per_s2, warm.noise_tokens_per_s**2)
        capacity = warm.fp16_capacity_tokens_per_s
    return Decision(DirectiveMode.FP16, "start_in_fp16"), State(returning.Memory(), holt, capacity)


SPEC = PolicySpec(Predictive, decide, start, adaptive=True)
