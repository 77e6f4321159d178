"""The control loop: snapshots in, directives and decision records out. Zero I/O, no clock, no randomness.

The live actor and the simulator drive this same class: they read the clock, call ``on_snapshot`` and ``step``, and do
what the returned ``Effects`` say. All times are seconds of the driver's clock, which must not run backwards.
"""

from dataclasses import dataclass
from typing import Any

from controller import guards
from controller.config import ControllerConfig
from controller.fleet import Fleet
from controller.policies import POLICIES
from controller.policies.base import Decision, Observation, ReplicaView
from controller.protocol import DirectivePublisher, lapsed
from controller.schema import (
    DecisionRecord,
    Directive,
    DirectiveAck,
    OverrideView,
    ReplicaSnapshot,
    ReplicaStatus,
    StatusReport,
)
from nestedfp.modes import DirectiveMode


@dataclass(frozen=True, slots=True)
class Effects:
    """What the driver must do."""

    directives: tuple[Directive, ...]  # to broadcast at once
    record: DecisionRecord | None  # to log: the directive or the ladder's rung changed
    next_step_at_s: float
    held: DecisionRecord | None = None  # to log: what a guard holds back has changed, the directive has not
    admission: float = 1.0  # each replica's admission limit is multiplied by this; the directives carry it
    desired_replicas: int | None = None  # for the autoscaler; None: as many as there are


class ControlLoop:
    """Decides for the whole cluster."""

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config
        self._policy = POLICIES[config.policy.name]
        start, self._policy_state = self._policy.start(config.policy)
        self._publisher = DirectivePublisher(config.lease_s, config.renew_s, start.mode, start.rule, start.reason)
        self._fleet = Fleet(config.rate_window_s, config.forget_after_s)
        self._guard_state = guards.GuardState()
        self._override: guards.Override | None = None
        self._since_s: float | None = None  # when the mode came into force; None before the first event
        self._last_reason = start.reason
        self._records_made = 0
        self._recorded = (start.mode, 0)  # mode and epoch of the last record
        self._may_adopt = self._policy.adaptive

    # -- what comes in -------------------------------------------------------------------------------------------------

    def on_snapshot(self, now_s: float, snapshot: ReplicaSnapshot) -> Directive:
        """Take a snapshot; the directive returned is the answer, and renews the replica's lease."""
        self._started(now_s)
        if self._fleet.on_snapshot(now_s, snapshot):
            newer = snapshot.epoch >= self._publisher.epoch
            self._publisher.on_snapshot(now_s, snapshot)
            if newer and not lapsed(snapshot):
                self._adopt(now_s, snapshot)
        return self._publisher.answer(snapshot.replica_id)

    def on_ack(self, now_s: float, ack: DirectiveAck) -> None:
        """Take a replica's answer to a broadcast."""
        self._started(now_s)
        self._publisher.on_ack(now_s, ack)

    def override(self, now_s: float, mode: DirectiveMode, ttl_s: float | None = None) -> Effects:
        """Put the operator's mode in force at once; ``auto`` hands back to the policy.

        Raises:
            ValueError: for a ``ttl_s`` that is not positive, or one given with ``auto``.
        """
        if ttl_s is not None and (mode is DirectiveMode.AUTO or not 0 < ttl_s < float("inf")):
            raise ValueError(
                f"expected ttl_s > 0 with mode fp16 or fp8, got ttl_s={ttl_s!r} with mode {mode.value}; "
                "leave ttl_s out to override without end, or to hand back"
            )
        if mode is DirectiveMode.AUTO:
            self._override = None
        else:
            self._override = guards.Override(mode, None if ttl_s is None else now_s + ttl_s)
        return self.step(now_s)

    # -- what goes out -------------------------------------------------------------------------------------------------

    def step(self, now_s: float) -> Effects:
        """Decide. To be called at ``next_step_at_s``; earlier does no harm."""
        self._started(now_s)
        self._publisher.retain(self._fleet.forget_silent(now_s))
        self._override = guards.override_in_force(now_s, self._override)
        observation = Observation(
            now_s=now_s, replicas=self._fleet.views(now_s), current=self._publisher.mode, slo=self._config.slo
        )
        verdict = guards.guarded_decide(
            self._policy,
            observation,
            self._policy_state,
            self._config.policy,
            self._config.guards,
            self._guard_state,
            self._override,
        )
        self._policy_state = verdict.policy_state
        self._last_reason = verdict.decision.reason
        self._put_in_force(now_s, verdict.decision)
        directive = self._publisher.due(now_s)
        return Effects(
            directives=() if directive is None else (directive,),
            record=self._record(now_s, verdict.decision),
            next_step_at_s=self._next_step_at_s(now_s),
        )

    def settled(self) -> tuple[Directive, int, float] | None:
        """Once every known replica has acknowledged: the directive, how many replicas, and seconds it took."""
        after_s = self._publisher.settled_after_s()
        if after_s is None:
            return None
        return self._publisher.current(), self._publisher.peer_count, after_s

    def status(self, now_s: float) -> StatusReport:
        """What is in force, why, and how each replica stands."""
        override = guards.override_in_force(now_s, self._override)
        remaining_s = None if override is None or override.expires_at_s is None else override.expires_at_s - now_s
        return StatusReport(
            mode=self._publisher.mode,
            epoch=self._publisher.epoch,
            reason=self._publisher.reason,
            last_reason=self._last_reason,
            policy=self._config.policy.name,
            since_s=0.0 if self._since_s is None else max(0.0, now_s - self._since_s),
            rule=self._publisher.rule,
            override=None if override is None else OverrideView(mode=override.mode, remaining_s=remaining_s),
            replicas=tuple(self._replica_status(view) for view in self._fleet.views(now_s)),
        )

    # -- inside --------------------------------------------------------------------------------------------------------

    def _started(self, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = now_s

    def _adopt(self, now_s: float, snapshot: ReplicaSnapshot) -> None:
        """Start from what a predecessor left in force: a restarted controller must not end FP8 amid an overload."""
        if not self._may_adopt:
            return
        self._may_adopt = False
        if snapshot.directive not in (self._publisher.mode, DirectiveMode.AUTO):
            self._put_in_force(now_s, Decision(snapshot.directive, "adopted_from_replica"))

    def _put_in_force(self, now_s: float, decision: Decision) -> None:
        publisher = self._publisher
        if decision.mode is publisher.mode and (
            decision.mode is not DirectiveMode.AUTO or decision.rule == publisher.rule
        ):
            return
        self._may_adopt = False
        self._guard_state = guards.switched(now_s, self._guard_state)
        self._since_s = now_s
        publisher.set_mode(now_s, decision.mode, decision.rule, decision.reason)

    def _record(self, now_s: float, decision: Decision) -> DecisionRecord | None:
        """A record for every change of mode or epoch, the first directive included."""
        publisher = self._publisher
        from_mode, epoch = self._recorded
        if epoch == publisher.epoch:
            return None
        self._recorded = (publisher.mode, publisher.epoch)
        self._records_made += 1
        changed = from_mode is not publisher.mode or epoch == 0
        return DecisionRecord(
            decision_id=self._records_made,
            now_s=now_s,
            from_mode=from_mode,
            to_mode=publisher.mode,
            rule=publisher.rule,
            epoch=publisher.epoch,
            policy=self._config.policy.name,
            reason=publisher.reason if changed else "epoch_raised",
            inputs=dict(decision.inputs),
        )

    def _next_step_at_s(self, now_s: float) -> float:
        at_s = now_s + self._config.step_period_s
        expires_at_s = None if self._override is None else self._override.expires_at_s
        return at_s if expires_at_s is None else min(at_s, expires_at_s)

    def _replica_status(self, view: ReplicaView) -> ReplicaStatus:
        snapshot, rates = view.snapshot, view.rates
        same: dict[str, Any] = {
            name: getattr(snapshot, name) for name in ReplicaStatus.model_fields if hasattr(snapshot, name)
        }
        heard = self._publisher.last_heard(snapshot.replica_id)
        same["epoch"], same["directive"] = heard or (snapshot.epoch, snapshot.directive)
        return ReplicaStatus(
            **same,
            id=snapshot.replica_id,
            directed=self._publisher.content.mode_for(snapshot.replica_id),
            acked=self._publisher.acked(snapshot.replica_id),
            stale=view.age_s > self._config.guards.stale_after_s,
            age_s=view.age_s,
            ttft_p90_ms=snapshot.ttft.p90_ms if snapshot.ttft.count else None,
            tpot_p90_ms=snapshot.tpot.p90_ms if snapshot.tpot.count else None,
            arrivals_per_s=None if rates is None else rates.arrivals,
            tokens_per_s=None if rates is None else rates.tokens,
        )
