"""FP8 for all while a queue or a latency is above its threshold. Pure.

Enter FP8 when any signal is above its ``enter`` on more than ``tolerated_share`` of the replicas. Leave it when every signal has
been below its ``leave`` for ``leave_after_s``. The signals of a replica:

    wait_ratio      wait of its oldest request in the queue / TTFT objective
    waiting_tokens  prompt tokens in its queue
    ttft_ratio      p90 of TTFT over the last seconds / TTFT objective
    tpot_ratio      p90 of TPOT over the last seconds / TPOT objective

Latencies are the engine's: what the path to it has added is taken off (``controller/fleet/path_limit.py``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from controller.fleet import path_limit
from controller.fleet.view import ReplicaView
from controller.messages import LatencyWindow
from controller.policies.base import Decision, Observation, PolicySpec
from nestedfp.modes import DirectiveMode
from workload.frozen import FrozenModel
from workload.slo import Slo

MOST = 1e12  # of a signal: a log cannot hold infinity
FEWEST_SAMPLES = 5  # of a latency: fewer never enter FP8, but one keeps it


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


class Threshold(FrozenModel):
    """Thresholds of the policy ``threshold``; null switches a signal off.

    TPOT leaves at half of where it enters because FP8 steps are up to twice as fast: a higher ``leave`` would be met by the
    switch itself.
    """

    name: Literal["threshold"] = "threshold"
    wait_ratio: Hysteresis | None = Hysteresis(enter=0.5, leave=0.1)
    waiting_tokens: Hysteresis | None = Hysteresis(enter=8192, leave=1024)
    ttft_ratio: Hysteresis | None = Hysteresis(enter=0.9, leave=0.45)
    tpot_ratio: Hysteresis | None = Hysteresis(enter=0.9, leave=0.45)
    leave_after_s: Annotated[float, Field(ge=0)] = 4.0  # bursts that come again meet FP8 still in force
    tolerated_share: Annotated[float, Field(ge=0, lt=1)] = 0.05  # of the replicas, whose troubles count for nothing

    @model_validator(mode="after")
    def _has_a_signal(self) -> Self:
        if not any((self.wait_ratio, self.waiting_tokens, self.ttft_ratio, self.tpot_ratio)):
            raise ValueError(
                "expected thresholds for at least one signal, got none; set wait_ratio, or use the policy static_fp16"
            )
        return self


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers."""

    calm_since_s: float | None = None  # below all thresholds ``leave``; None: not now


def decide(observation: Observation, state: State, config: Threshold) -> tuple[Decision, State]:
    """Compare the cluster's signals with the thresholds."""
    now_s = observation.now_s
    signals = list(_signals(observation, config))
    over = next((name for name, entering, _, band in signals if entering > band.enter), None)
    blocking = next((name for name, _, leaving, band in signals if leaving >= band.leave), None)
    calm_since_s = None if blocking else now_s if state.calm_since_s is None else state.calm_since_s
    limited = path_limit.limited_count(observation.replicas)
    # Or some of them, as a controller before this one has left them.
    fp8 = [view for view in observation.replicas if observation.mode_of(view.replica_id) is DirectiveMode.FP8]
    in_fp8 = bool(fp8) and observation.current is not DirectiveMode.FP16

    mode = DirectiveMode.FP8
    if over is not None:
        reason = f"{over}_over_enter"
    elif not in_fp8:
        mode, reason = DirectiveMode.FP16, path_limit.REASON if limited else "below_enter"
    elif blocking is not None:
        reason = f"{blocking}_over_leave"
    elif calm_since_s is not None and now_s - calm_since_s < config.leave_after_s:
        reason = "calm_too_short"
    else:
        mode, reason = DirectiveMode.FP16, "below_leave"
    inputs = (*((name, entering) for name, entering, _, _ in signals), *path_limit.inputs(limited))
    return Decision(mode, reason, inputs=inputs), State(calm_since_s)


def _signals(observation: Observation, config: Threshold) -> Iterator[tuple[str, float, float, Hysteresis]]:
    """Yield (name, value for entering, value for leaving, thresholds), the queue first: latencies are known late."""
    views, slo = observation.replicas, observation.slo
    for name in ("wait_ratio", "waiting_tokens", "ttft_ratio", "tpot_ratio"):
        thresholds: Hysteresis | None = getattr(config, name)
        if thresholds is not None:
            values = [(min(MOST, value), count) for value, count in (_value(name, view, slo) for view in views)]
            enough = [value if count >= FEWEST_SAMPLES else 0.0 for value, count in values]
            any_samples = [value if count else 0.0 for value, count in values]
            yield (
                name,
                exceeded_by(enough, config.tolerated_share),
                exceeded_by(any_samples, config.tolerated_share),
                thresholds,
            )


def _value(name: str, view: ReplicaView, slo: Slo) -> tuple[float, int]:
    """A replica's signal, and of how many samples it is."""
    snapshot = view.snapshot
    if name == "wait_ratio":
        return snapshot.oldest_wait_s / (slo.ttft_ms * 1e-3), FEWEST_SAMPLES
    if name == "waiting_tokens":
        return snapshot.waiting_tokens, FEWEST_SAMPLES
    window: LatencyWindow = snapshot.ttft if name == "ttft_ratio" else snapshot.tpot
    if path_limit.limits(view):
        return 0.0, 0
    if name == "ttft_ratio":
        return path_limit.engine_ttft_ms(snapshot, window.p90_ms) / slo.ttft_ms, window.count
    return path_limit.engine_tpot_ms(snapshot, window.p90_ms) / slo.tpot_ms, window.count


def exceeded_by(values: Sequence[float], share: float) -> float:
    """The smallest value that at most ``share`` of the values exceed; 0 for none."""
    return sorted(values)[-1 - int(share * len(values))] if values else 0.0


SPEC = PolicySpec(Threshold, decide, State, adaptive=True)
