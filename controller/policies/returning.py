"""When FP16 may be tried again: what every adaptive policy asks before it leaves FP8. Pure.

The parts are explained in their own files: ``health`` (predictions), ``load`` (offered load and capacity), ``backoff``
(failed returns). ``CalmSettings`` say what is directed after the return.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Self

from pydantic import Field, model_validator

from controller.fleet import path_limit
from controller.policies.base import Decision, Observation
from controller.policies.signals import backoff, health, load
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from workload.frozen import FrozenModel
from workload.slo import Slo


class CalmSettings(FrozenModel):
    """Thresholds of single steps; both null: every step runs FP16."""

    calm_wait_fraction: Annotated[float, Field(gt=0, le=1)] | None = None  # of the TTFT objective, waited by a request
    calm_budget_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None  # of the step's token budget

    @property
    def calm_mode(self) -> DirectiveMode:
        """The mode of the calm directive."""
        strict = self.calm_wait_fraction is None and self.calm_budget_fraction is None
        return DirectiveMode.FP16 if strict else DirectiveMode.AUTO

    def rule(self, slo: Slo, mode: DirectiveMode) -> StepRule:
        """The rule that goes with a directive of this mode."""
        if mode is not DirectiveMode.AUTO:
            return StepRule()
        wait = self.calm_wait_fraction
        return StepRule(
            fp8_wait_s=None if wait is None else wait * slo.ttft_ms / 1e3,
            fp8_budget_fraction=self.calm_budget_fraction,
        )

    def calm_capacity(self, estimate: load.LoadEstimate) -> float | None:
        """Tokens per second that the calm directive could serve: with leave to run FP8, as much as FP8 can."""
        return estimate.fp16_capacity if self.calm_mode is DirectiveMode.FP16 else estimate.fp8_capacity

    def calm_load(self, estimate: load.LoadEstimate) -> float | None:
        """Offered load over that capacity."""
        return load.over(estimate.offered, self.calm_capacity(estimate))


class ReturnSettings(load.LoadSettings, health.HealthSettings, backoff.BackoffSettings, CalmSettings):
    """Parameters that the adaptive policies share. Fractions are of the SLO."""

    enter_strain: Annotated[float, Field(gt=0)] = 0.2  # FP8 when the EWMA of the strain passes this
    strain_s: Annotated[float, Field(gt=0)] = 3.0  # time constant of its smoothing
    leave_fraction: Annotated[float, Field(gt=0, le=1)] = 0.7  # FP16 when its predictions stay below this much
    max_kv_usage: Annotated[float, Field(gt=0, le=1)] = 0.9

    @model_validator(mode="after")
    def _leave_below_enter(self) -> Self:
        if self.leave_fraction >= self.enter_fraction:
            raise ValueError(
                f"expected leave_fraction < enter_fraction, got {self.leave_fraction:g} and {self.enter_fraction:g}; "
                "equal or crossed bands would flip at every step"
            )
        return self


@dataclass(frozen=True, slots=True)
class Memory:
    """What an adaptive policy remembers, whatever else it does; of fixed size."""

    learned: load.LoadState = field(default_factory=load.LoadState)
    history: backoff.Backoff = field(default_factory=backoff.Backoff)
    ttft_strain: float = 0.0  # EWMA
    tpot_strain: float = 0.0


@dataclass(frozen=True, slots=True)
class View:
    """One look at the cluster."""

    seen: health.Health
    load: load.LoadEstimate
    danger: str  # what endangers the SLO; empty for nothing
    dt_s: float  # since the last look
    ttft_strain: float  # EWMA
    tpot_strain: float
    path_limited: int  # replicas that the path limits

    @property
    def inputs(self) -> tuple[tuple[str, float], ...]:
        """For the decision log."""
        return (
            ("predicted_ttft_ms", self.seen.ttft_ms),
            ("tpot_ms", self.seen.tpot_ms),
            ("ttft_strain", self.ttft_strain),
            ("tpot_strain", self.tpot_strain),
            *path_limit.inputs(self.path_limited),
        )

    def calm_reason(self, reason: str) -> str:
        """Why nothing is done."""
        return path_limit.calm_reason(self.path_limited, reason)


def look(observation: Observation, memory: Memory, config: ReturnSettings) -> tuple[View, Memory]:
    """Learn from the observation, and judge the present."""
    now_s, slo, at_s = observation.now_s, observation.slo, memory.learned.at_s
    dt_s = 0.0 if at_s is None else min(load.MAX_GAP_S, max(0.0, now_s - at_s))
    estimate, learned = load.update(observation, memory.learned, config)
    seen = health.assess(observation.replicas, slo, estimate.step_ratio, config)
    history = backoff.observe(memory.history, now_s, observation.current, estimate.offered, config)
    # What was suffered in FP8 says nothing about the FP16 that has just begun: carried over, it would undo the return.
    returned = memory.history.mode is DirectiveMode.FP8 and history.mode is not DirectiveMode.FP8
    before = (0.0, 0.0) if returned else (memory.ttft_strain, memory.tpot_strain)
    ttft_strain = load.ewma(before[0], seen.ttft_strain, dt_s, config.strain_s)
    tpot_strain = load.ewma(before[1], seen.tpot_strain, dt_s, config.strain_s)
    danger = ""  # lasting, and still there: what has passed while a guard held needs no FP8 any more
    if ttft_strain > config.enter_strain and seen.ttft_strain > 0:
        danger = "predicted_ttft_over_enter"
    elif tpot_strain > config.enter_strain and seen.tpot_strain > 0:
        danger = "tpot_over_enter"
    limited = path_limit.limited_count(observation.replicas)
    view = View(seen, estimate, danger, dt_s, ttft_strain, tpot_strain, limited)
    return view, Memory(learned, history, ttft_strain, tpot_strain)


def leave_fp8(
    view: View, memory: Memory, observation: Observation, config: ReturnSettings
) -> tuple[DirectiveMode, str, tuple[tuple[str, float], ...]]:
    """The mode from now on, why, and the values looked at, for a policy that has no reason of its own to stay in FP8."""
    reason, values = veto(view, memory, observation, config)
    return (DirectiveMode.FP8, reason, values) if reason else (config.calm_mode, "fp16_would_hold_slo", values)


def decision(
    view: View,
    observation: Observation,
    config: ReturnSettings,
    mode: DirectiveMode,
    reason: str,
    inputs: tuple[tuple[str, float], ...],
) -> Decision:
    """The decision with its rule and the predicted loads."""
    loads = {"fp16_load": view.load.fp16_load, "fp8_load": view.load.fp8_load}
    return Decision(mode, reason, rule=config.rule(observation.slo, mode), inputs=inputs, **loads)


def veto(
    view: View, memory: Memory, observation: Observation, config: ReturnSettings
) -> tuple[str, tuple[tuple[str, float], ...]]:
    """The first reason to stay in FP8, empty for none, and the values looked at."""
    inputs: list[tuple[str, float]] = []
    for reason, value, limit in _vetoes(view, memory, observation, config):
        inputs.append((reason, value))
        if value > limit:
            return reason, tuple(inputs)
    return "", tuple(inputs)


def _vetoes(
    view: View, memory: Memory, observation: Observation, config: ReturnSettings
) -> Iterator[tuple[str, float, float]]:
    """Yield (reason, value, limit)."""
    slo, seen, ratio = observation.slo, view.seen, view.load.step_ratio
    yield "load_unknown", float(seen.unknown), 0
    yield "fp16_would_miss_ttft", seen.fp16_ttft_ms(ratio), config.leave_fraction * slo.ttft_ms
    yield "fp16_would_miss_tpot", seen.fp16_tpot_ms, config.leave_fraction * slo.tpot_ms
    yield "fp16_would_fill_kv", seen.kv_usage * ratio, config.max_kv_usage
    if (present := config.calm_load(view.load)) is not None:
        yield "fp16_would_be_overloaded", present, config.return_load
    failed = load.over(view.load.offered, memory.history.failed_load)
    if failed is None or failed > config.passed_load:
        yield "waits_after_failed_return", backoff.hold_left_s(memory.history, observation.now_s), 0
    if failed is not None:
        yield "fp16_failed_at_this_load", failed, config.return_load


def proposed(memory: Memory, mode: DirectiveMode) -> Memory:
    """Note what the policy decided."""
    history = backoff.proposed(memory.history, mode)
    return memory if history is memory.history else replace(memory, history=history)
