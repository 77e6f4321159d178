"""The share of finished requests that missed the SLO since the mode changed. Pure.

The predictions look at whole replicas; misses also count what they do not see, such as single unlucky requests.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from controller.fleet import path_limit
from controller.policies.base import Observation
from workload.frozen import FrozenModel

OTHERS_S = 5.0  # after a change the requests that finish had mostly run under the mode before
MAX_GAP_S = 5.0
Z_95 = 1.645  # 95 % of a normal distribution lie below this many standard deviations


class MissSettings(FrozenModel):
    """Parameters of the miss signal."""

    max_miss_share: Annotated[float, Field(gt=0, le=1)] | None = 0.015  # of the requests; null: not looked at
    miss_memory_s: Annotated[float, Field(gt=0)] = 60.0
    miss_after_s: Annotated[float, Field(ge=0)] = 20.0  # misses come in clusters: none are counted as a share before
    min_judged: Annotated[int, Field(ge=1)] = 100  # fewer requests than this are no evidence


@dataclass(frozen=True, slots=True)
class Misses:
    """Decaying counts of requests."""

    at_s: float | None = None
    began_s: float = 0.0
    slo_evaluated: float = 0.0
    missed: float = 0.0


def update(observation: Observation, state: Misses, changed_at_s: float | None, memory_s: float) -> Misses:
    """Add what has been judged since the last decision; start anew after a change of mode. ``memory_s``: time constant."""
    now_s = observation.now_s
    if changed_at_s is not None and now_s - changed_at_s < OTHERS_S:
        return Misses(now_s, now_s)
    if state.at_s is None:
        return Misses(now_s, now_s)
    dt_s = min(MAX_GAP_S, max(0.0, now_s - state.at_s))
    keep = math.exp(-dt_s / memory_s)
    evaluated_per_s, missed_per_s = rates(observation)
    return Misses(
        now_s,
        state.began_s,
        keep * state.slo_evaluated + dt_s * evaluated_per_s,
        keep * state.missed + dt_s * missed_per_s,
    )


def rates(observation: Observation) -> tuple[float, float]:
    """Requests judged, and requests that missed, per second over all replicas that the path does not limit."""
    slo_evaluated = within = 0.0
    for view in observation.replicas:
        rates = view.rates
        if rates is not None and rates.slo_evaluated_per_s > 0 and not path_limit.limits(view):
            slo_evaluated += rates.slo_evaluated_per_s
            within += rates.within_slo_per_s
    return slo_evaluated, min(slo_evaluated, max(0.0, slo_evaluated - within))


def share(state: Misses, settings: MissSettings) -> float | None:
    """Missed of judged, less what chance may have added; None while too few have been judged.

    The lower end of Wilson's score interval at 95 %, one-sided (E. B. Wilson, JASA 22, 1927): a few unlucky requests of
    a few hundred say nothing.
    """
    slo_evaluated = state.slo_evaluated
    long_enough = state.at_s is not None and state.at_s - state.began_s >= settings.miss_after_s
    if slo_evaluated < settings.min_judged or not long_enough:
        return None
    share, z2 = min(1.0, state.missed / slo_evaluated), Z_95**2
    spread = Z_95 * math.sqrt(share * (1 - share) / slo_evaluated + z2 / (4 * slo_evaluated * slo_evaluated))
    return max(0.0, (share + z2 / (2 * slo_evaluated) - spread) / (1 + z2 / slo_evaluated))
