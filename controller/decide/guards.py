"""What may hold back a policy: warm-up, quorum, stale data, dwell time, flip rate. And the operator, who overrules all.

Each guard is a pure function, all in seconds and none in ticks, so that a change of the step period changes nothing.
Missing data argues against a change (as in Kubernetes' horizontal autoscaler): a silent replica is taken to be calm
when the policy wants FP8, and to be loaded when it wants to leave it.

A policy that keeps its own pace (``PolicySpec``) knows dwell times and switches itself: only the quorum holds it back, and silent
replicas keep what they do. Any other has them among its parameters (``Paced``).
"""

from dataclasses import dataclass, replace
from typing import Any

from controller.fleet.view import Replicas, ids_of
from controller.policies.base import Decision, Observation, Paced, PolicySpec
from controller.protocol import NO_RULE, Content
from nestedfp.modes import DirectiveMode
from workload.frozen import FrozenModel

MINUTE_S = 60.0
STALE_AFTER_S = 1.0  # silence after which a snapshot is no evidence
QUORUM = 0.5  # share of the replicas that must be ready and fresh
WARM_UP_S = 2.0  # a replica that has been ready for less is no evidence


@dataclass(frozen=True, slots=True)
class GuardState:
    """When the mode of most replicas changed."""

    changed_at_s: float | None = None  # None: the mode of the start is still in force
    switches_at_s: tuple[float, ...] = ()  # of the last minute


@dataclass(frozen=True, slots=True)
class Plan:
    """What is wanted in force, and why."""

    decision: Decision  # what is in force where a guard holds
    wanted: DirectiveMode | None = None  # the policy's proposal for most replicas; None: it was not asked
    held: str | None = None  # the guard that holds; None: none does
    policy_state: Any = None

    def content(self, admission_scale: float) -> Content:
        """As a directive says it: a rule that no replica follows, and an exception that is none, must not raise the epoch."""
        decision, auto = self.decision, DirectiveMode.AUTO
        exceptions = {name: mode for name, mode in decision.exceptions.items() if mode is not decision.mode}
        follows = decision.mode is auto or auto in exceptions.values()
        follows = follows or (decision.mode is DirectiveMode.FP16 and decision.rule.exact_step_s is not None)
        return Content(decision.mode, decision.rule if follows else NO_RULE, exceptions, admission_scale)


def serving(replicas: Replicas) -> Replicas:
    """The replicas that serve: one whose engine has died or hangs says that it does not."""
    return tuple([replica for replica in replicas if replica.snapshot.ready])


def warmed_up(replicas: Replicas) -> Replicas:
    """The replicas that have served for a while, and computed some requests: before that a sound one looks overloaded."""
    ready_for_s = [(replica, replica.snapshot.ready_for_s) for replica in serving(replicas) if not replica.cold]
    return tuple([replica for replica, ready_s in ready_for_s if ready_s is None or ready_s >= WARM_UP_S])


def fresh(replicas: Replicas) -> Replicas:
    """The replicas heard of lately."""
    return tuple([replica for replica in replicas if replica.age_s <= STALE_AFTER_S])


def hold_for_quorum(fresh_count: int, ready_count: int) -> str | None:
    """Hold when too few of the ready replicas are fresh to judge the cluster."""
    if ready_count == 0:
        return "held_no_ready_replicas"
    return "held_by_quorum" if fresh_count == 0 or fresh_count < QUORUM * ready_count else None


def hold_for_stale(current: DirectiveMode, wanted: DirectiveMode, stale_count: int) -> str | None:
    """Stay in FP8 while a replica is silent: it may be the loaded one. Entering rests on fresh replicas alone."""
    leaving = current is DirectiveMode.FP8 and wanted is not DirectiveMode.FP8
    return "held_by_stale_replica" if leaving and stale_count > 0 else None


def hold_for_dwell(now_s: float, current: DirectiveMode, state: GuardState, pace: Paced) -> str | None:
    """Hold until the present mode has had its shortest stay."""
    dwell_s = pace.dwell_fp8_s if current is DirectiveMode.FP8 else pace.dwell_fp16_s
    if state.changed_at_s is None or now_s - state.changed_at_s >= dwell_s:
        return None
    return "held_by_dwell"


def hold_for_flip_rate(now_s: float, state: GuardState, pace: Paced) -> str | None:
    """Hold when the last minute has seen as many switches as allowed."""
    most, times_s = pace.max_switches_per_minute, state.switches_at_s
    if len(times_s) < most:
        return None
    return "held_by_flip_rate" if sum(now_s - at_s < MINUTE_S for at_s in times_s) >= most else None


def switched(now_s: float, state: GuardState) -> GuardState:
    """Note a switch."""
    recent = [at_s for at_s in state.switches_at_s if now_s - at_s < MINUTE_S]
    return GuardState(now_s, (*recent, now_s))


def guarded_decide(
    spec: PolicySpec[Any, Any],
    observation: Observation,
    policy_state: Any,
    policy_config: FrozenModel,
    guard_state: GuardState,
) -> Plan:
    """Ask the policy and apply every guard: first quorum; then the policy; and for a proposal to change, the rest."""
    if not spec.adaptive:
        proposal, policy_state = spec.decide(observation, policy_state, policy_config)
        return Plan(proposal, proposal.mode, None, policy_state)
    now_s, current = observation.now_s, observation.current
    ready = warmed_up(observation.replicas)
    evidence = fresh(ready)
    if (hold := hold_for_quorum(len(evidence), len(ready))) is not None:
        if not len(ready) and len(serving(observation.replicas)):
            hold = "held_by_warm_up"
        return Plan(stay(observation, hold), None, hold, policy_state)
    proposal, policy_state = spec.decide(replace(observation, replicas=evidence), policy_state, policy_config)
    silent = set(ids_of(ready)) - set(ids_of(evidence))
    if spec.keeps_own_pace:
        kept = {replica_id: observation.mode_of(replica_id) for replica_id in silent}
        proposal = replace(proposal, exceptions={**proposal.exceptions, **kept})
        return Plan(proposal, proposal.mode, None, policy_state)
    if proposal.mode is current:
        return Plan(proposal, current, None, policy_state)
    assert isinstance(policy_config, Paced), "a policy that keeps no pace of its own has one among its parameters"
    hold = (
        hold_for_stale(current, proposal.mode, len(ready) - len(evidence))
        or hold_for_dwell(now_s, current, guard_state, policy_config)
        or hold_for_flip_rate(now_s, guard_state, policy_config)
    )
    decision = proposal if hold is None else replace(stay(observation, hold), inputs=proposal.inputs)
    return Plan(decision, proposal.mode, hold, policy_state)


def stay(observation: Observation, reason: str) -> Decision:
    """What is in force, but for the rule, which a guard does not know."""
    return Decision(observation.current, reason, exceptions=observation.exceptions)


def keep_fp8(plan: Plan, current: Content, views: Replicas) -> Plan:
    """The plan without what takes FP8 off a replica: precision is the last thing that the ladder gives back."""
    fp8, decision = DirectiveMode.FP8, plan.decision
    planned = {replica_id: decision.mode_of(replica_id) for replica_id in ids_of(views)}
    kept = {r: mode for r, mode in planned.items() if mode is not fp8 and current.mode_for(r) is not fp8}
    if len(kept) == sum(mode is not fp8 for mode in planned.values()):
        return plan
    decision = replace(decision, mode=fp8, exceptions=kept, reason="held_by_ladder")
    return replace(plan, decision=decision, held="held_by_ladder")
