"""Measures what the ladder looks at, from what is known about the replicas. Pure."""

from controller.config import ControllerConfig
from controller.guards import usable, warmed_up
from controller.ladder import Strain
from controller.policies import POLICIES
from controller.policies.base import Replicas
from controller.policies.table import Table, ids_of, in_order_sum
from controller.publisher import Content
from nestedfp.modes import DirectiveMode

DRAIN_PER_S = 0.05  # of the queue: one that shrinks faster is gone in 20 s


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
        queued, growth = in_order_sum(seen.rows["waiting_tokens"]), in_order_sum(seen.rows["queue_growth"])
    else:
        over_slo = sum([view.snapshot.oldest_wait_s > slo_s for view in seen])
        over_half_slo = sum([view.snapshot.oldest_wait_s > slo_s / 2 for view in seen])
        queued = float(sum([view.snapshot.waiting_tokens for view in seen]))
        growth = sum([view.rates.waiting_tokens for view in seen if view.rates is not None])
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
        draining=growth <= -DRAIN_PER_S * queued,  # 0 <= 0 where nothing waits
    )
