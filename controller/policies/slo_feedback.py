"""Fast up, slow down: FP8 as soon as the SLO is in danger, FP16 again only when FP16 is predicted to hold it. Pure.

Entering looks at the queue and at arrivals, because completions saturate: an overloaded engine finishes requests at a
constant rate however long its queue is. Leaving asks what FP16 would do at the present load, because what FP8 does now
is no evidence: calm under FP8 may be an overload under FP16, and the two would then take turns.

Predictions, per replica:

* TTFT: the oldest wait, or, once a queue stands (it did not drain during the whole window, the criterion of CoDel,
  RFC 8289), the queue expected ``horizon_s`` ahead divided by the rate at which tokens leave it; plus one step.
* FP16 step: the smoothed FP16 step time if FP16 ran lately, else the FP8 step time times ``fp16_step_ratio``.
* FP16 TPOT: that step, but at least the measured 90th percentile times ``fp16_step_ratio``.
* FP16 capacity: the token rate, in FP16 equivalents, at which the replica last ran with a standing queue. A decoding
  engine is never idle, so that the share of busy time would say nothing.
* FP16 KV use: by Little's law a request that takes ``fp16_step_ratio`` times longer holds its blocks as much longer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from controller.policies.base import Decision, Observation, PolicySpec, ReplicaView, Settings, worst
from nestedfp.modes import DirectiveMode, Mode

LONGEST_PREDICTION_S = 3600.0  # keeps predictions finite when nearly nothing leaves the queue


class SloFeedback(Settings):
    """Parameters of the policy ``slo_feedback``. Fractions are of the SLO."""

    name: Literal["slo_feedback"] = "slo_feedback"
    enter_fraction: Annotated[float, Field(gt=0, le=1)] = 0.85  # FP8 when TTFT or TPOT passes this much of the SLO
    leave_fraction: Annotated[float, Field(gt=0, le=1)] = 0.7  # FP16 when its predictions stay below this much
    fp16_step_ratio: Annotated[float, Field(ge=1, le=4)] = 1.6  # FP16 step time / FP8 step time; measured: 1.25 to 1.45
    fp16_step_memory_s: Annotated[float, Field(ge=0)] = 2.0  # an FP16 step time older than this is not trusted
    max_utilisation: Annotated[float, Field(gt=0, le=1)] = 0.85  # of the FP16 capacity
    capacity_memory_s: Annotated[float, Field(ge=0)] = 300.0  # then the capacity is forgotten and FP16 tried again
    max_kv_usage: Annotated[float, Field(gt=0, le=1)] = 0.9
    horizon_s: Annotated[float, Field(ge=0)] = 1.0
    min_window_count: Annotated[int, Field(ge=1)] = 5  # fewer TPOT samples than this are no measurement

    @model_validator(mode="after")
    def _leave_below_enter(self) -> Self:
        if self.leave_fraction >= self.enter_fraction:
            raise ValueError(
                f"expected leave_fraction < enter_fraction, got {self.leave_fraction:g} and {self.enter_fraction:g}; "
                "equal or crossed bands would flip at every step"
            )
        return self


@dataclass(frozen=True, slots=True)
class Capacity:
    """Tokens per second, in FP16 equivalents, of a replica that had more to do than it could."""

    replica_id: str
    tokens_per_s: float
    seen_at_s: float


State = tuple[Capacity, ...]


def decide(observation: Observation, state: State, config: SloFeedback) -> tuple[Decision, State]:
    """Enter on danger, leave on a prediction that all replicas would hold the SLO in FP16."""
    state = _remember_capacity(observation, state, config)
    slo, busy = observation.slo, tuple(r for r in observation.replicas if not r.idle)
    ttft_ms = worst(busy, lambda r: predicted_ttft_ms(r, config))
    tpot_ms = worst(busy, lambda r: current_tpot_ms(r, config))
    inputs: tuple[tuple[str, float], ...] = (("predicted_ttft_ms", ttft_ms), ("tpot_ms", tpot_ms))
    if observation.current is not DirectiveMode.FP8:
        if ttft_ms > config.enter_fraction * slo.ttft_ms:
            return Decision(DirectiveMode.FP8, "predicted_ttft_over_enter", inputs=inputs), state
        if tpot_ms > config.enter_fraction * slo.tpot_ms:
            return Decision(DirectiveMode.FP8, "tpot_over_enter", inputs=inputs), state
        return Decision(DirectiveMode.FP16, "slo_holds", inputs=inputs), state
    for reason, value, limit in _objections(observation, state, config):
        inputs = (*inputs, (reason, value))
        if value > limit:
            return Decision(DirectiveMode.FP8, reason, inputs=inputs), state
    return Decision(DirectiveMode.FP16, "fp16_would_hold_slo", inputs=inputs), state


def predicted_ttft_ms(view: ReplicaView, config: SloFeedback) -> float:
    """Time to first token of a request that arrives now, in the present mode, in milliseconds."""
    snapshot, rates = view.snapshot, view.rates
    wait_s = snapshot.oldest_wait_s
    if view.standing_tokens > 0 and rates is not None and rates.admitted_tokens > 0:
        ahead_tokens = snapshot.waiting_tokens + max(0.0, rates.waiting_tokens) * config.horizon_s
        wait_s = max(wait_s, ahead_tokens / rates.admitted_tokens)
    return min(wait_s, LONGEST_PREDICTION_S) * 1e3 + (current_step_ms(view) or 0.0)


def current_step_ms(view: ReplicaView) -> float | None:
    """Smoothed duration of a step in the mode that ran last, in milliseconds; None before the first step."""
    snapshot = view.snapshot
    return snapshot.step_ms_fp8 if snapshot.mode is Mode.FP8 else snapshot.step_ms_fp16


def current_tpot_ms(view: ReplicaView, config: SloFeedback) -> float:
    """Time per output token in milliseconds: measured, but at least a step, which the window has yet to see."""
    return max(_measured_tpot_ms(view, config), current_step_ms(view) or 0.0)


def predicted_fp16_step_ms(view: ReplicaView, config: SloFeedback) -> float | None:
    """Duration of an FP16 step at the present load in milliseconds; None when no step has been timed."""
    snapshot, age_s = view.snapshot, view.fp16_step_age_s
    seen_lately = age_s is not None and age_s <= config.fp16_step_memory_s
    if snapshot.step_ms_fp16 is not None and (seen_lately or snapshot.step_ms_fp8 is None):
        return snapshot.step_ms_fp16
    return None if snapshot.step_ms_fp8 is None else snapshot.step_ms_fp8 * config.fp16_step_ratio


def predicted_fp16_tpot_ms(view: ReplicaView, config: SloFeedback) -> float:
    """Time per output token in FP16 at the present load, in milliseconds; 0 when nothing is known.

    The 90th percentile lies above the mean step because some steps hold prompts; looking at the mean alone would leave
    FP8 for the very tail that had entered it.
    """
    measured_ms = _measured_tpot_ms(view, config) * config.fp16_step_ratio
    return max(measured_ms, predicted_fp16_step_ms(view, config) or 0.0)


def _measured_tpot_ms(view: ReplicaView, config: SloFeedback) -> float:
    window = view.snapshot.tpot
    return window.p90_ms if window.count >= config.min_window_count else 0.0


def _objections(observation: Observation, state: State, config: SloFeedback) -> Iterator[tuple[str, float, float]]:
    """Yield (reason, value, limit); a value over its limit argues for staying in FP8."""
    slo, busy = observation.slo, tuple(r for r in observation.replicas if not r.idle)
    ratio = config.fp16_step_ratio
    yield "load_unknown", sum(r.rates is None or predicted_fp16_step_ms(r, config) is None for r in busy), 0
    ttft_ms = worst(busy, lambda r: predicted_ttft_ms(r, config) * ratio)
    yield "fp16_would_miss_ttft", ttft_ms, config.leave_fraction * slo.ttft_ms
    tpot_ms = worst(busy, lambda r: predicted_fp16_tpot_ms(r, config))
    yield "fp16_would_miss_tpot", tpot_ms, config.leave_fraction * slo.tpot_ms
    yield "fp16_would_fill_kv", worst(busy, lambda r: r.snapshot.kv_usage * ratio), config.max_kv_usage
    known = {capacity.replica_id: capacity.tokens_per_s for capacity in state}
    utilisation = worst(
        busy, lambda r: r.rates.tokens / known[r.replica_id] if r.rates and r.replica_id in known else 0.0
    )
    yield "fp16_would_be_overloaded", utilisation, config.max_utilisation


def _remember_capacity(observation: Observation, state: State, config: SloFeedback) -> State:
    """Note the token rate of each replica with a standing queue; forget what is older than the memory."""
    oldest_s = observation.now_s - config.capacity_memory_s
    known = {capacity.replica_id: capacity for capacity in state if capacity.seen_at_s >= oldest_s}
    for view in observation.replicas:
        if view.standing_tokens > 0 and view.rates is not None:
            tokens_per_s = view.rates.tokens_fp16 + view.rates.tokens_fp8 / config.fp16_step_ratio
            if tokens_per_s > 0:
                known[view.replica_id] = Capacity(view.replica_id, tokens_per_s, observation.now_s)
    return tuple(known.values())


SPEC = PolicySpec(
    SloFeedback, decide, lambda config: (Decision(DirectiveMode.FP16, "start_in_fp16"), ()), adaptive=True
)
