"""Hysteresis on signals: FP8 when any signal passes its threshold ``enter``, FP16 again when all are below ``leave``.

A threshold must be passed for ``enter_after_s``, and all signals must have been below ``leave`` for
``leave_after_s``. Between the two the mode stays as it is. A signal of the cluster is the value that at most
``tolerated_share`` of the replicas exceed: with few replicas the worst. Simple to predict, and blind to what FP16 would
do at the present load: where calm under FP8 is an overload under FP16 it alternates as often as the guards let it. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from controller.fleet import path_limit
from controller.fleet.view import Replicas
from controller.policies.base import Decision, Observation, PolicySpec
from controller.policies.signals import load
from controller.policies.signals.health import exceeded_by
from nestedfp.modes import DirectiveMode
from workload.frozen import FrozenModel


class Hysteresis(FrozenModel):
    """Enter FP8 above ``enter``; leave it only below ``leave``. In the unit of the signal."""

    enter: Annotated[float, Field(gt=0)]
    leave: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _leave_below_enter(self) -> Self:
        if self.leave >= self.enter:
            raise ValueError(
                f"expected leave < enter, got leave={self.leave:g} and enter={self.enter:g}; "
                "equal or crossed thresholds would flip at every step"
            )
        return self


class Threshold(load.LoadSettings):
    """Bands of the policy ``threshold``; null switches a signal off.

    The thresholds on the queue lead. TPOT leaves at half of where it enters because FP8 steps are up to twice as fast: a higher
    threshold ``leave`` would be met by the switch itself.
    """

    name: Literal["threshold"] = "threshold"
    # Age of the oldest waiting request; half the usual TTFT SLO.
    wait_s: Hysteresis | None = Hysteresis(enter=0.1, leave=0.02)
    waiting_tokens: Hysteresis | None = Hysteresis(enter=8192, leave=1024)  # queued prompt tokens of a replica
    ttft_p90_ms: Hysteresis | None = Hysteresis(enter=180, leave=90)
    tpot_p90_ms: Hysteresis | None = Hysteresis(enter=30, leave=15)
    min_window_count: Annotated[int, Field(ge=1)] = 5  # fewer samples than this never enter FP8
    enter_after_s: Annotated[float, Field(ge=0)] = 0.0  # a threshold passed for this long
    # All signals below for this long; the guards' dwell holds besides.
    leave_after_s: Annotated[float, Field(ge=0)] = 0.0
    tolerated_share: Annotated[float, Field(ge=0, lt=1)] = 0.05  # of the replicas, whose troubles count for nothing

    @model_validator(mode="after")
    def _has_a_signal(self) -> Self:
        if not any((self.wait_s, self.waiting_tokens, self.ttft_p90_ms, self.tpot_p90_ms)):
            raise ValueError(
                "expected thresholds for at least one signal, got none; set wait_s, or use the policy static_fp16"
            )
        return self


@dataclass(frozen=True, slots=True)
class State:
    """Since when the signals have been as they are."""

    learned: load.LoadState = field(default_factory=load.LoadState)
    over_since_s: float | None = None  # past a threshold ``enter``; None: not now
    calm_since_s: float | None = None  # below all thresholds ``leave``


def decide(observation: Observation, state: State, config: Threshold) -> tuple[Decision, State]:
    """Compare the cluster's signals with the thresholds."""
    now_s = observation.now_s
    estimate, learned = load.update(observation, state.learned, config)
    limited = path_limit.limited_count(observation.replicas)
    signals = list(_signals(observation, config))
    over = next((name for name, entering, _, thresholds in signals if entering > thresholds.enter), "")
    blocking = next((name for name, _, leaving, thresholds in signals if leaving >= thresholds.leave), "")
    over_since_s = (now_s if state.over_since_s is None else state.over_since_s) if over else None
    calm_since_s = None if blocking else (now_s if state.calm_since_s is None else state.calm_since_s)

    mode = observation.current
    if over_since_s is not None and now_s - over_since_s >= config.enter_after_s:
        mode, reason = DirectiveMode.FP8, f"{over}_over_enter"
    elif mode is not DirectiveMode.FP8:
        mode, reason = DirectiveMode.FP16, f"{over}_passing" if over else path_limit.calm_reason(limited, "below_enter")
    elif blocking:
        reason = f"{blocking}_over_leave"
    elif calm_since_s is not None and now_s - calm_since_s < config.leave_after_s:
        reason = "calm_too_short"
    else:
        mode, reason = DirectiveMode.FP16, "below_leave"
    decision = Decision(
        mode,
        reason,
        inputs=(*((name, entering) for name, entering, _, _ in signals), *path_limit.inputs(limited)),
        fp16_load=estimate.fp16_load,
        fp8_load=estimate.fp8_load,
    )
    return decision, State(learned, over_since_s, calm_since_s)


def _signals(observation: Observation, config: Threshold) -> Iterator[tuple[str, float, float, Hysteresis]]:
    """Yield (name, value for entering, value for leaving, thresholds), the leading signals first."""
    for name, (entering, leaving) in _values(observation.replicas, config.min_window_count).items():
        thresholds: Hysteresis | None = getattr(config, name)
        if thresholds is not None:
            enter = exceeded_by(entering, config.tolerated_share)
            yield (
                name,
                enter,
                enter if leaving is entering else exceeded_by(leaving, config.tolerated_share),
                thresholds,
            )


# Signal -> its values for entering and for leaving. A window of fewer than ``least`` samples is too little to enter on, but
# enough to stay. Where the path is the limit a window says nothing of the engine.


def _values(replicas: Replicas, least: int) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
    snapshots = [view.snapshot for view in replicas]
    wait_s, tokens = [one.oldest_wait_s for one in snapshots], [one.waiting_tokens for one in snapshots]
    ttft = [
        (0, 0.0) if path_limit.limits(view) else (one.ttft.count, path_limit.engine_ttft_ms(one, one.ttft.p90_ms))
        for view, one in zip(replicas, snapshots, strict=True)
    ]
    tpot = [
        (0, 0.0) if path_limit.limits(view) else (one.tpot.count, path_limit.engine_tpot_ms(one, one.tpot.p90_ms))
        for view, one in zip(replicas, snapshots, strict=True)
    ]
    return {
        "wait_s": (wait_s, wait_s),
        "waiting_tokens": (tokens, tokens),
        "ttft_p90_ms": (_p90_ms(ttft, least), _p90_ms(ttft, 1)),
        "tpot_p90_ms": (_p90_ms(tpot, least), _p90_ms(tpot, 1)),
    }


def _p90_ms(windows: list[tuple[int, float]], least: int) -> list[float]:
    return [p90_ms if count >= least else 0.0 for count, p90_ms in windows]


SPEC = PolicySpec(
    Threshold, decide, lambda config: (Decision(DirectiveMode.FP16, "start_in_fp16"), State()), adaptive=True
)
