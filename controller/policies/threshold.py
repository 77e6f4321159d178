"""Two bands per signal: FP8 when any signal passes its enter band, FP16 again when all are below their leave bands.

The worst replica counts. Between the bands the mode stays as it is. Pure.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from controller.policies.base import Decision, Observation, PolicySpec, Settings, worst
from controller.schema import LatencyWindow
from nestedfp.modes import DirectiveMode


class Band(Settings):
    """Enter FP8 above ``enter``; leave it only below ``leave``. In the unit of the signal."""

    enter: Annotated[float, Field(gt=0)]
    leave: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _leave_below_enter(self) -> Self:
        if self.leave >= self.enter:
            raise ValueError(
                f"expected leave < enter, got leave={self.leave:g} and enter={self.enter:g}; "
                "equal or crossed bands would flip at every step"
            )
        return self


class Threshold(Settings):
    """Bands of the policy ``threshold``; null switches a signal off.

    The queue bands lead. TPOT leaves at half of where it enters because FP8 steps are up to twice as fast: a higher
    leave band would be met by the switch itself.
    """

    name: Literal["threshold"] = "threshold"
    wait_s: Band | None = Band(enter=0.1, leave=0.02)  # age of the oldest waiting request; half the usual TTFT SLO
    waiting_tokens: Band | None = Band(enter=8192, leave=1024)  # queued prompt tokens of a replica
    ttft_p90_ms: Band | None = Band(enter=180, leave=90)
    tpot_p90_ms: Band | None = Band(enter=30, leave=15)
    min_window_count: Annotated[int, Field(ge=1)] = 5  # fewer samples than this never enter FP8

    @model_validator(mode="after")
    def _has_band(self) -> Self:
        if not any((self.wait_s, self.waiting_tokens, self.ttft_p90_ms, self.tpot_p90_ms)):
            raise ValueError("expected at least one band, got none; set wait_s, or use the policy static_fp16")
        return self


def decide(observation: Observation, state: None, config: Threshold) -> tuple[Decision, None]:
    """Compare the worst replica's signals with the bands."""
    signals = list(_signals(observation, config))
    inputs = tuple((name, entering) for name, entering, _, _ in signals)
    for name, entering, _, band in signals:
        if entering > band.enter:
            return Decision(DirectiveMode.FP8, f"{name}_over_enter", inputs=inputs), None
    if observation.current is not DirectiveMode.FP8:
        return Decision(DirectiveMode.FP16, "below_enter", inputs=inputs), None
    for name, _, leaving, band in signals:
        if leaving >= band.leave:
            return Decision(DirectiveMode.FP8, f"{name}_over_leave", inputs=inputs), None
    return Decision(DirectiveMode.FP16, "below_leave", inputs=inputs), None


def _signals(observation: Observation, config: Threshold) -> Iterator[tuple[str, float, float, Band]]:
    """Yield (name, value for entering, value for leaving, band), the leading signals first."""
    replicas = observation.replicas
    if config.wait_s is not None:
        wait_s = worst(replicas, lambda r: r.snapshot.oldest_wait_s)
        yield "wait_s", wait_s, wait_s, config.wait_s
    if config.waiting_tokens is not None:
        tokens = worst(replicas, lambda r: r.snapshot.waiting_tokens)
        yield "waiting_tokens", tokens, tokens, config.waiting_tokens
    # A thin window is too little to enter on, but enough to stay.
    if config.ttft_p90_ms is not None:
        entering = worst(replicas, lambda r: _p90_ms(r.snapshot.ttft, config.min_window_count))
        yield "ttft_p90_ms", entering, worst(replicas, lambda r: _p90_ms(r.snapshot.ttft, 1)), config.ttft_p90_ms
    if config.tpot_p90_ms is not None:
        entering = worst(replicas, lambda r: _p90_ms(r.snapshot.tpot, config.min_window_count))
        yield "tpot_p90_ms", entering, worst(replicas, lambda r: _p90_ms(r.snapshot.tpot, 1)), config.tpot_p90_ms


def _p90_ms(window: LatencyWindow, min_count: int) -> float:
    return window.p90_ms if window.count >= min_count else 0.0


SPEC = PolicySpec(
    Threshold, decide, lambda config: (Decision(DirectiveMode.FP16, "start_in_fp16"), None), adaptive=True
)
