"""Measures what the ladder looks at, from what is known about the replicas. Pure."""

from controller.config import ControllerConfig
from controller.guards import usable, warmed_up
from controller.ladder import Strain
from controller.policies import POLICIES
from controller.policies.base import Replicas
from controller.policies.table import Table, ids_of
from controller.publisher import Content
from nestedfp.modes import DirectiveMode


def measure(
    now_s: float,
    views: Replicas,
    current: Content,
    config: ControllerConfig,
    fp8_load: float | None,
    offered_over_admitted: float,
) -> Strain:
    """The strain on the replicas that serve and have been heard of lately, under the modes of ``current``."""
    seen, slo_s = usable(warmed_up(views), config.guards), config.slo.ttft_ms / 1e3
    if isinstance(seen, Table):
        waits_s = seen.rows["oldest_wait_s"]
        over_slo, over_half_slo = int((waits_s > slo_s).sum()), int((waits_s > slo_s / 2).sum())
    else:
        over_slo = sum([view.snapshot.oldest_wait_s > slo_s for view in seen])
        over_half_slo = sum([view.snapshot.oldest_wait_s > slo_s / 2 for view in seen])
    if not POLICIES[config.policy.name].adaptive:
        degraded = True  # as far as it may be
    elif current.exceptions:
        degraded = all([current.mode_for(replica_id) is DirectiveMode.FP8 for replica_id in ids_of(seen)])
    else:
        degraded = current.mode is DirectiveMode.FP8
    return Strain(
        now_s=now_s,
        replicas=len(seen),
        fully_degraded=degraded,
        fp8_load=fp8_load,
        offered_over_admitted=offered_over_admitted,
        over_slo=over_slo,
        over_half_slo=over_half_slo,
    )
