"""Builds the answer to GET /status from the parts of the control loop. Pure."""

from controller.audit import ReplicaStatus, Rung, StatusReport
from controller.config import ControllerConfig
from controller.decide.guards import STALE_AFTER_S
from controller.decide.journal import DecisionJournal
from controller.decide.overload import LadderState
from controller.decide.overrides import Override
from controller.fleet import path_limit
from controller.fleet.fleet import Fleet
from controller.fleet.view import ReplicaView
from controller.messages import ReplicaState
from controller.protocol.publisher import DirectivePublisher


def status_report(
    now_s: float,
    config: ControllerConfig,
    publisher: DirectivePublisher,
    fleet: Fleet,
    override: Override,
    journal: DecisionJournal,
    rung: Rung,
    ladder: LadderState,
    since_s: float,
) -> StatusReport:
    """What is in force, why, and how each replica stands. Times are seconds of the loop's clock."""
    content = publisher.content
    views = fleet.views(now_s)
    return StatusReport(
        mode=content.mode,
        exceptions=dict(content.exceptions),
        epoch=publisher.epoch,
        reason=publisher.reason,
        last_reason=journal.last_reason,
        wanted=journal.last_wanted,
        policy=config.policy.name,
        slo_ttft_ms=config.slo.ttft_ms,
        slo_tpot_ms=config.slo.tpot_ms,
        rung=rung,
        fp8_insufficient=ladder.insufficient,
        admission_scale=content.admission_scale,
        desired_replicas=ladder.desired_replicas,
        since_s=since_s,
        rule=content.rule,
        override=override.reported(now_s),
        path_saturated=path_limit.limited_count(views) > 0,
        replicas=tuple(_replica(view, publisher) for view in views),
        decisions={outcome: dict(counts) for outcome, counts in journal.counts.items()},
        config_loads=journal.reload_count,
    )


def _replica(view: ReplicaView, publisher: DirectivePublisher) -> ReplicaStatus:
    snapshot, rates = view.snapshot, view.rates
    heard = publisher.last_heard(snapshot.replica_id)
    shared = {name: getattr(snapshot, name) for name in ReplicaState.model_fields}
    if heard is not None:
        shared["epoch"], shared["directive"] = heard
    return ReplicaStatus(
        **shared,
        id=snapshot.replica_id,
        directed=publisher.content.mode_for(snapshot.replica_id),
        acked=publisher.acked(snapshot.replica_id),
        stale=view.age_s > STALE_AFTER_S,
        age_s=view.age_s,
        path_saturated=path_limit.limits(view),
        ttft_p90_ms=snapshot.ttft.p90_ms if snapshot.ttft.count else None,
        tpot_p90_ms=snapshot.tpot.p90_ms if snapshot.tpot.count else None,
        arrivals_per_s=None if rates is None else rates.arrivals_per_s,
        tokens_per_s=None if rates is None else rates.tokens_per_s,
    )
