"""Measures what the ladder looks at, from what is known about the replicas. Pure."""

from controller.config import ControllerConfig
from controller.ladder import Strain
from controller.policies import POLICIES
from controller.policies.base import ReplicaView
from controller.publisher import Content
from nestedfp.modes import DirectiveMode


def measure(
    now_s: float,
    views: tuple[ReplicaView, ...],
    current: Content,
    config: ControllerConfig,
    fp8_load: float | None,
    offered_over_admitted: float,
) -> Strain:
    """The strain on the replicas that serve and have been heard of lately, under the modes of ``current``."""
    slo_s, stale_after_s = config.slo.ttft_ms / 1e3, config.guards.stale_after_s
    serving = [view for view in views if view.age_s <= stale_after_s and view.snapshot.ready]
    waits_s = [view.snapshot.oldest_wait_s for view in serving]
    if not POLICIES[config.policy.name].adaptive:
        degraded = True  # as far as it may be
    elif current.exceptions:
        degraded = all(current.mode_for(view.replica_id) is DirectiveMode.FP8 for view in serving)
    else:
        degraded = current.mode is DirectiveMode.FP8
    return Strain(
        now_s=now_s,
        replicas=len(serving),
        fully_degraded=degraded,
        fp8_load=fp8_load,
        offered_over_admitted=offered_over_admitted,
        over_slo=sum(wait_s > slo_s for wait_s in waits_s),
        over_half_slo=sum(wait_s > slo_s / 2 for wait_s in waits_s),
    )
