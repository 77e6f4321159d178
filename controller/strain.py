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
    replicas = over_slo = over_half_slo = 0
    fp8_everywhere = True
    for view in views:
        snapshot = view.snapshot
        if view.age_s > stale_after_s or not snapshot.ready:
            continue
        replicas += 1
        if snapshot.oldest_wait_s > slo_s / 2:
            over_half_slo += 1
            over_slo += snapshot.oldest_wait_s > slo_s
        if current.exceptions and fp8_everywhere:
            fp8_everywhere = current.mode_for(snapshot.replica_id) is DirectiveMode.FP8
    if not POLICIES[config.policy.name].adaptive:
        degraded = True  # as far as it may be
    elif current.exceptions:
        degraded = fp8_everywhere
    else:
        degraded = current.mode is DirectiveMode.FP8
    return Strain(
        now_s=now_s,
        replicas=replicas,
        fully_degraded=degraded,
        fp8_load=fp8_load,
        offered_over_admitted=offered_over_admitted,
        over_slo=over_slo,
        over_half_slo=over_half_slo,
    )
