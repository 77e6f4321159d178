"""The control loop: snapshots in, directives and decision records out. Zero I/O, no clock, no randomness.

The live actor and the simulator drive this same class: they read the clock, call ``on_snapshot`` and ``step``, and do
what the returned ``Effects`` say. All times are seconds of the driver's monotonic clock.
"""

from dataclasses import dataclass, replace

from controller.audit import DecisionRecord, ReplicaStatus, Rung, StatusReport
from controller.config import STEP_PERIOD_S, ControllerConfig
from controller.decide import overload
from controller.decide.guards import STALE_AFTER_S, Plan, guarded_decide, keep_fp8, serving
from controller.decide.journal import DecisionJournal
from controller.decide.overload import measure
from controller.decide.overrides import Override
from controller.fleet import path_limit
from controller.fleet.fleet import FORGET_AFTER_S, Fleet
from controller.fleet.view import Replicas, ReplicaView
from controller.messages import Directive, DirectiveAck, Fallback, ReplicaSnapshot, ReplicaState, Terms
from controller.policies import POLICIES
from controller.policies.base import Decision, Observation
from controller.protocol.publisher import NO_RULE, Content, DirectivePublisher, lease_expired
from nestedfp.modes import DirectiveMode
from nestedfp.steps.slo_rule import exact_steps

HELD_BY_ADOPTION = "held_by_adoption"
ADOPTION_S = 2.0  # every replica that lives has said what it does by then


@dataclass(frozen=True, slots=True)
class Effects:
    """What the driver must do."""

    record: DecisionRecord | None  # to log: the directive or the ladder's rung changed
    next_step_at_s: float
    notes: tuple[DecisionRecord, ...] = ()  # to log: what is held back has changed, or the configuration
    admission: float = 1.0  # each replica's admission limit is multiplied by this; the directives carry it
    desired_replicas: int | None = None  # for the autoscaler; None: as many as without the controller


class ControlLoop:
    """Decides for the whole cluster."""

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config
        self._spec = POLICIES[config.policy.name]
        self._policy_state = self._spec.start()
        mode, rule, reason = DirectiveMode.FP16, NO_RULE, "start_in_fp16"
        if not self._spec.adaptive:
            (mode, rule), reason = config.lapsed, config.policy.name
        self._decided = Content(mode, rule)  # what the policy and its guards want in force
        self._terms = _terms(config)
        self._publisher = DirectivePublisher(self._terms, mode, rule, reason)
        self._fleet = Fleet(config.slo)
        self._ladder = overload.LadderState()
        self._override = Override()
        self._journal = DecisionJournal(self._decided, reason)
        self._since_s: float | None = None  # when the mode came into force; None before the first event
        self._began_s = 0.0
        # The operator has, since the last directive. It gets an epoch of its own also where it changes nothing: the next controller
        # knows replicas alone, and by their epochs which of them have heard it.
        self._spoken = False
        self._adopts_from: int | None = 0  # epoch from which a replica's first words are adopted; None: no more
        self._adopted: dict[str, DirectiveMode] = {}  # what those replicas do

    # -- what comes in -------------------------------------------------------------------------------------------------

    def on_snapshot(self, now_s: float, snapshot: ReplicaSnapshot) -> None:
        """Take a snapshot."""
        self._begin(now_s)
        new = snapshot.replica_id not in self._fleet
        if not self._fleet.on_snapshot(now_s, snapshot):
            return
        expired = lease_expired(snapshot)
        self._publisher.on_report(now_s, snapshot.replica_id, snapshot.epoch, snapshot.directive, expired=expired)
        if not new:
            return
        self._override.adopt(now_s, snapshot)  # however late it comes, if nobody has known better
        if now_s - self._began_s <= FORGET_AFTER_S:
            self._ladder = overload.rejoined(self._ladder, snapshot.desired_replicas, self._config.ladder)
        if self._adopts_from is not None and (not expired or self._spec.adaptive):
            self._adopt(now_s, snapshot)
        # Until the next step a controller that has just started would tell it what it starts with itself: admission at its full, no
        # operator's order, a policy's mode without its deadlines.
        self._decide(now_s, self._fleet.views(now_s), stepping=False)

    def on_ack(self, now_s: float, ack: DirectiveAck) -> None:
        """Take a replica's answer to a directive."""
        self._begin(now_s)
        self._publisher.on_report(now_s, ack.replica_id, ack.epoch, ack.directive)

    def override(self, now_s: float, mode: DirectiveMode, ttl_s: float | None = None) -> Effects:
        """Put the operator's mode in force at once; ``auto`` hands back to the policy. Raises as ``Override.set``."""
        self._begin(now_s)
        self._override.set(now_s, mode, ttl_s)
        self._spoken = True
        return self.step(now_s)

    def reload(self, now_s: float, config: ControllerConfig) -> Effects:
        """Go on under another configuration. What is in force and the ladder's rung carry over."""
        if config.policy != self._config.policy:  # a state may be shaped by the parameters it was made under
            self._spec = POLICIES[config.policy.name]
            self._policy_state = self._spec.start()
        self._config = config
        self._fleet.slo = config.slo
        self._terms = _terms(config)
        self._ladder = overload.limited(self._ladder, config.ladder)
        self._journal.reloaded()
        return self.step(now_s)

    # -- what goes out -------------------------------------------------------------------------------------------------

    def step(self, now_s: float) -> Effects:
        """Decide. To be called at ``next_step_at_s``; earlier does no harm."""
        self._begin(now_s)
        fleet, publisher = self._fleet, self._publisher
        if fleet.forget_silent(now_s) or publisher.peer_count != len(fleet):
            publisher.retain(fleet.ids)
        views = fleet.views(now_s)
        self._override.expire(now_s)
        plan, climbed = self._decide(now_s, views, stepping=True)
        record, notes = self._journal.write(
            now_s, self._config, plan, self._decided, publisher, self._rung(), self._ladder, climbed
        )
        ends_s = None if self._override.order is None else self._override.order.expires_at_s
        return Effects(
            record=record,
            next_step_at_s=now_s + STEP_PERIOD_S if ends_s is None else min(now_s + STEP_PERIOD_S, ends_s),
            notes=notes,
            admission=publisher.content.admission_scale,
            desired_replicas=publisher.terms.desired_replicas,
        )

    def directive_for(self, replica_id: str) -> Directive | None:
        """The directive for a replica, with a full lease; None: nothing has been heard of it."""
        return self._publisher.directive_for(replica_id) if replica_id in self._fleet else None

    @property
    def epoch(self) -> int:
        """Of the directive: another one has another epoch."""
        return self._publisher.epoch

    def converged_after_s(self) -> float | None:
        """Seconds from the directive to its acknowledgement by the last replica; None while one is missing."""
        return self._publisher.converged_after_s()

    def status(self, now_s: float) -> StatusReport:
        """What is in force, why, and how each replica stands."""
        self._begin(now_s)
        config, publisher, journal, ladder = self._config, self._publisher, self._journal, self._ladder
        content, views = publisher.content, self._fleet.views(now_s)
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
            rung=self._rung(),
            fp8_insufficient=ladder.insufficient,
            admission_scale=content.admission_scale,
            desired_replicas=ladder.desired_replicas,
            since_s=0.0 if self._since_s is None else max(0.0, now_s - self._since_s),
            rule=content.rule,
            override=self._override.reported(now_s),
            path_saturated=path_limit.limited_count(views) > 0,
            replicas=tuple(_replica(view, publisher) for view in views),
            decisions={outcome: dict(counts) for outcome, counts in journal.counts.items()},
            config_loads=journal.reload_count,
        )

    # -- inside --------------------------------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = self._began_s = now_s

    def _decide(self, now_s: float, views: Replicas, *, stepping: bool) -> tuple[Plan, str | None]:
        """Plan, and take it over. Returns the plan, and why the ladder went a step where it did.

        Between two steps the ladder stays, and what replicas have in force is still adopted.
        """
        plan = self._plan(now_s, views)
        self._journal.note_plan(plan)
        climbed = self._climb(now_s, views) if stepping else None
        decided = plan.content(self._ladder.admission_scale)
        same_modes = (decided.mode, decided.exceptions) == (self._decided.mode, self._decided.exceptions)
        reason = climbed if climbed is not None and same_modes else plan.decision.reason
        self._put_in_force(now_s, decided, reason, adopting=not stepping)
        now = {
            "desired_replicas": self._ladder.desired_replicas,
            "replicas": len(serving(views)),
            "order": self._override.reported(now_s),
        }
        # Where engines decide, some exact and some fast, they do so without a controller too.
        goes_on = (
            self._spec.adaptive and decided.mode is DirectiveMode.AUTO and plan.decision.reason != HELD_BY_ADOPTION
        )
        self._publisher.set_terms(self._terms.model_copy(update=now), goes_on=goes_on)
        return plan, climbed

    def _plan(self, now_s: float, views: Replicas) -> Plan:
        """Ask the operator, and then the policy."""
        ordered = self._override.order
        if ordered is not None:
            rule = exact_steps(self._config.slo.tpot_ms) if ordered.mode is DirectiveMode.FP16 else NO_RULE
            return Plan(Decision(ordered.mode, "override", rule))
        spec, config, current = self._spec, self._config, self._decided
        if spec.adaptive and self._adopts_from and now_s - self._began_s < min(ADOPTION_S, self._config.lease_s):
            # Until every replica that lives has said what it does, a policy would decide for those who spoke first.
            return Plan(Decision(current.mode, HELD_BY_ADOPTION, current.rule, exceptions=current.exceptions))
        observation = Observation(now_s, views, current.mode, config.slo, current.exceptions)
        plan = guarded_decide(spec, observation, self._policy_state, config.policy)
        self._policy_state = plan.policy_state
        if plan.held is not None:
            plan = replace(plan, decision=replace(plan.decision, rule=current.rule))
        # A policy that never changes its directive is the operator's word, as it is for the guards.
        return keep_fp8(plan, current, views) if self._ladder.holds_fp8 and spec.adaptive else plan

    def _climb(self, now_s: float, views: Replicas) -> str | None:
        """Go a step up or down the ladder where it is time to; returns why."""
        ordered = self._override.order
        if ordered is not None and ordered.mode is not DirectiveMode.FP8:
            # The operator has ruled out the first rung; what it takes then is the operator's to say, and proves nothing later.
            self._ladder = replace(self._ladder, failing_since_s=None, calm_since_s=None)
            return None
        offered = self._fleet.offered_over_admitted()
        strain = measure(now_s, views, self._decided, self._config, offered)
        self._ladder, climbed = overload.advance(strain, self._ladder, self._config.ladder)
        return climbed

    def _rung(self) -> Rung:
        decided = self._decided
        degraded = decided.mode is DirectiveMode.FP8 or any(
            mode is DirectiveMode.FP8 and replica_id in self._fleet for replica_id, mode in decided.exceptions.items()
        )
        return self._ladder.rung(degraded)

    def _adopt(self, now_s: float, snapshot: ReplicaSnapshot) -> None:
        """Start from what a predecessor left in force on each replica: a restart must not end FP8 amid an overload."""
        if snapshot.epoch == 0:  # a new replica, which nobody has told anything
            return
        assert self._adopts_from is not None, "the caller has looked"
        spec, rule = self._spec, snapshot.rule or NO_RULE
        late = now_s - self._began_s > 2 * self._config.lease_s
        if late and (self._adopts_from or not spec.adaptive):
            self._adopts_from = None
            return
        if snapshot.rule is not None and snapshot.admission_scale < 1.0:
            self._ladder = overload.shedding(self._ladder, snapshot.admission_scale, now_s, self._config.ladder)
        self._adopts_from = max(self._adopts_from, snapshot.epoch) if spec.adaptive else None
        # A replica in auto that tells no rule does not tell all.
        if not spec.adaptive or (snapshot.directive is DirectiveMode.AUTO and rule == NO_RULE):
            return
        # Whom nobody has told anything decides by itself; exact replicas go by the rule too.
        self._adopted[snapshot.replica_id] = snapshot.directive
        exceptions = {name: mode for name, mode in self._adopted.items() if mode is not DirectiveMode.AUTO}
        rule = rule if rule != NO_RULE else self._config.lapsed[1]
        content = Content(DirectiveMode.AUTO, rule, exceptions, self._ladder.admission_scale)
        self._put_in_force(now_s, content, "adopted_from_replica", adopting=True)

    def _put_in_force(self, now_s: float, decided: Content, reason: str, *, adopting: bool = False) -> None:
        """Take a decision over, and publish it."""
        before = self._decided
        if decided != before:
            self._decided = decided
            if not adopting and (decided.mode, decided.exceptions) != (before.mode, before.exceptions):
                self._adopts_from = None
        mode_changed = decided.mode is not self._publisher.content.mode
        self._publisher.set_content(now_s, decided, reason, anew=self._spoken)
        self._spoken = False
        if mode_changed:
            self._since_s = now_s


def _terms(config: ControllerConfig) -> Terms:
    mode, rule = config.lapsed
    return Terms(lease_s=config.lease_s, slo=config.slo, fallback=Fallback(mode=mode, rule=rule))


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
