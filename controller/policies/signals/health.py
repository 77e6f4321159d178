"""Whether replicas hold the SLO now, and whether they would in FP16. Shared by the adaptive policies. Pure.

Entering FP8 looks at queues and arrivals, because completions saturate: an overloaded engine finishes requests at a
constant rate however long its queue is. Leaving asks what FP16 would do, because what FP8 does now is no evidence.

* TTFT: the oldest wait, or, once a queue stands, the queue expected ``horizon_s`` ahead, with the requests that are still
  on the path to the engine, divided by the rate at which tokens leave it; plus one step.
* TPOT: the mean step over the window of the rates, at least the measured median gap between tokens. A request sees
  the mean of many steps, so that a high percentile of single gaps, long where prompts are computed, would cry wolf.
  What the path adds to the gap does not count (``path_limit``).
* FP16 TPOT: the same times the step ratio; directly after FP16 ran, the EWMA of its own step time stands for it.
* FP16 KV use: by Little's law a request that takes ``step_ratio`` times longer holds its blocks as much longer.

A predicted value of the cluster is the one that at most ``tolerated_share`` of the replicas exceed: with few replicas
the worst, with a thousand not the one that happens to be unlucky. Danger is a mean instead: each replica's strain is 0
while it is within ``enter_fraction`` of the objective, and beyond it the quotient, up to ``GREATEST_STRAIN``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from controller.fleet import path_limit
from controller.fleet.view import Rates, Replicas
from nestedfp.modes import Mode
from workload.frozen import FrozenModel
from workload.slo import Slo

BUSY_MS = 900.0  # of step time in a second: the replica has not paused
GREATEST_STRAIN = 5.0
LARGEST_MS = 3.6e6  # keeps predictions finite when next to nothing leaves the queue


class HealthSettings(FrozenModel):
    """Parameters of the predictions."""

    horizon_s: Annotated[float, Field(ge=0, le=60)] = 1.0  # how far ahead a growing queue is looked at
    fp16_step_memory_s: Annotated[float, Field(ge=0)] = 2.0  # an FP16 step time older than this is not trusted
    min_window_count: Annotated[int, Field(ge=1)] = 5  # fewer TPOT samples than this are no measurement
    enter_fraction: Annotated[float, Field(gt=0, le=1)] = 0.85  # danger: TTFT or TPOT passes this much of the SLO
    # Of the replicas, which may be worse than a signal says.
    tolerated_share: Annotated[float, Field(ge=0, lt=1)] = 0.25


@dataclass(frozen=True, slots=True)
class Health:
    """Signals of the cluster."""

    ttft_ms: float  # predicted, in the present mode
    tpot_ms: float
    ttft_strain: float  # mean over the busy replicas of their strain by TTFT, and by TPOT
    tpot_strain: float
    fp16_tpot_ms: float  # predicted for FP16 at the present load
    kv_usage: float
    unknown: int  # busy replicas without rates or step times
    at_risk: float  # requests that wait, or are on their way, on replicas whose predicted TTFT passes the objective

    def fp16_ttft_ms(self, step_ratio: float) -> float:
        """Predicted TTFT in FP16."""
        return min(LARGEST_MS, self.ttft_ms * step_ratio)


def assess(  # noqa: C901  one loop without calls: it runs for every replica ten times per second
    replicas: Replicas, slo: Slo, step_ratio: float, settings: HealthSettings
) -> Health:
    """Look at every replica once. Idle replicas are left out: their latencies and step times are old news."""
    ttfts: list[float] = []
    tpots: list[float] = []
    fp16_tpots: list[float] = []
    usages: list[float] = []
    unknown, at_risk, ttft_strain, tpot_strain = 0, 0.0, 0.0, 0.0
    ttft_limit_ms, tpot_limit_ms = settings.enter_fraction * slo.ttft_ms, settings.enter_fraction * slo.tpot_ms
    horizon_s, memory_s, min_count = settings.horizon_s, settings.fp16_step_memory_s, settings.min_window_count
    for view in replicas:  # no calls but where something is unusual
        snapshot, rates = view.snapshot, view.rates
        waiting = snapshot.waiting
        if waiting == 0 and snapshot.running == 0:
            continue
        told, path_age_s = snapshot.path, view.path_age_s
        limited = path_age_s is not None and path_age_s <= path_limit.MEMORY_S
        fp16_ms, fp8_ms = snapshot.step_ms_fp16, snapshot.step_ms_fp8
        step_ms = (fp8_ms if snapshot.mode is Mode.FP8 else fp16_ms) or 0.0
        tpot_ms, ttft_ms = step_ms, snapshot.oldest_wait_s * 1e3
        if rates is None:
            unknown += 1
        else:
            steps = rates.steps_fp16_per_s + rates.steps_fp8_per_s
            if steps * step_ms >= BUSY_MS:
                tpot_ms = 1e3 / steps
            if view.standing_tokens > 0:
                queued = snapshot.waiting_tokens + (0.0 if limited else path_limit.queued_tokens(snapshot, rates))
                ttft_ms = max(ttft_ms, 1e3 * _drain_s(queued, rates, horizon_s))
        ttft_ms += step_ms
        if ttft_ms > ttft_limit_ms:
            ttft_ms = min(LARGEST_MS, ttft_ms)
            ttft_strain += min(GREATEST_STRAIN, ttft_ms / ttft_limit_ms)
            if ttft_ms > slo.ttft_ms:
                at_risk += waiting if told is None or limited else waiting + told.in_path
        age_s = view.fp16_step_age_s
        if fp16_ms is not None and (fp8_ms is None or (age_s is not None and age_s <= memory_s)):
            fp16_tpot_ms = fp16_ms if step_ms == 0 else fp16_ms * (tpot_ms / step_ms)
        elif fp8_ms is not None:
            fp16_tpot_ms = tpot_ms * step_ratio if step_ms == fp8_ms else fp8_ms * step_ratio
        else:
            fp16_tpot_ms = 0.0
            unknown += rates is not None
        window = snapshot.tpot
        if window.count >= min_count and not limited:
            measured_ms = window.p50_ms if told is None else path_limit.engine_tpot_ms(snapshot, window.p50_ms)
            if measured_ms > tpot_ms:
                tpot_ms = measured_ms
            if measured_ms * step_ratio > fp16_tpot_ms:
                fp16_tpot_ms = measured_ms * step_ratio
        if tpot_ms > tpot_limit_ms:
            tpot_ms = min(LARGEST_MS, tpot_ms)
            tpot_strain += min(GREATEST_STRAIN, tpot_ms / tpot_limit_ms)
        if fp16_tpot_ms > LARGEST_MS:
            fp16_tpot_ms = LARGEST_MS
        ttfts.append(ttft_ms)
        tpots.append(tpot_ms)
        fp16_tpots.append(fp16_tpot_ms)
        usages.append(snapshot.kv_usage)
    share, busy = settings.tolerated_share, max(1, len(ttfts))
    return Health(
        ttft_ms=exceeded_by(ttfts, share),
        tpot_ms=exceeded_by(tpots, share),
        ttft_strain=ttft_strain / busy,
        tpot_strain=tpot_strain / busy,
        fp16_tpot_ms=exceeded_by(fp16_tpots, share),
        kv_usage=exceeded_by(usages, share),
        unknown=unknown,
        at_risk=at_risk,
    )


def _drain_s(waiting_tokens: float, rates: Rates, horizon_s: float) -> float:
    """How long the queue that is expected ``horizon_s`` ahead takes to drain; 0 when nothing is known to leave it."""
    leaving = rates.arrived_tokens_per_s - rates.queue_growth_tokens_per_s
    return (waiting_tokens + max(0.0, rates.queue_growth_tokens_per_s) * horizon_s) / leaving if leaving > 0 else 0.0


def exceeded_by(values: Sequence[float], share: float) -> float:
    """The smallest value that at most ``share`` of the values exceed; 0 for none."""
    return sorted(values)[-1 - int(share * len(values))] if values else 0.0
