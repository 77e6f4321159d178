"""What may hold back a policy: warm-up, quorum, stale data, dwell time, flip rate. And the operator, who overrules all.

Each guard is a pure function, all in seconds and none in ticks, so that a change of the step period changes nothing.
Missing data argues against a change (as in Kubernetes' horizontal autoscaler): a silent replica is taken to be calm
when the policy wants FP8, and to be loaded when it wants to leave it.

A policy that keeps its own pace (``PolicySpec``) knows dwell times and switches itself: only the quorum holds it back, and silent
replicas keep what they do.
"""

from dataclasses import dataclass, replace
from typing import Any

from controller.config import GuardConfig
from controller.fleet.view import Replicas, ReplicaView, ids_of
from controller.policies.base import Decision, Observation, PolicySpec
from nestedfp.modes import DirectiveMode
from workload.frozen import FrozenModel

MINUTE_S = 60.0
ENGINE_STUCK = "engine_stuck"  # reason, where nothing is done and an engine does not answer or does not go forward


@dataclass(frozen=True, slots=True)
class GuardState:
    """When the mode of most replicas changed."""

    changed_at_s: float | None = None  # None: the mode of the start is still in force
    switches_at_s: tuple[float, ...] = ()  # of the last minute


@dataclass(frozen=True, slots=True)
class GuardedDecision:
    """What the guards make of a policy's proposal."""

    decision: Decision  # what to do: what is in force where a guard holds
    policy_state: Any
    wanted: DirectiveMode | None  # the policy's proposal for most replicas; None: it was not asked
    held: str | None = None  # the guard that holds; None: none does


def warmed_up(replicas: Replicas, warm_up_s: float = 0.0) -> Replicas:
    """The replicas that serve, and have for a while: what is measured before would look like an overload.

    With a ``warm_up_s`` above 0 those are left out, too, that compute their first requests, whenever these come.
    """
    return tuple(
        [
            replica
            for replica in replicas
            if (snapshot := replica.snapshot).ready
            and (snapshot.ready_for_s is None or snapshot.ready_for_s >= warm_up_s)
            and not (replica.cold and warm_up_s > 0)
        ]
    )


def fresh(replicas: Replicas, stale_after_s: float) -> Replicas:
    """The replicas heard of lately."""
    return tuple([replica for replica in replicas if replica.age_s <= stale_after_s])


def engine_fault(view: ReplicaView, config: GuardConfig) -> str | None:
    """Why nothing is known of this replica's engine though its process reports; None: it answers and goes forward."""
    snapshot = view.snapshot
    if snapshot.stats_age_s > config.stats_stale_after_s:
        return f"its engine has not answered for {snapshot.stats_age_s:.1f} s"
    if (snapshot.progress_age_s or 0.0) > config.no_progress_after_s:
        return f"its engine has had work and made no step for {snapshot.progress_age_s:.1f} s"
    return None


def usable(replicas: Replicas, config: GuardConfig) -> Replicas:
    """The replicas that are evidence: heard of lately, with an engine that answers and goes forward."""
    heard = fresh(replicas, config.stale_after_s)
    return tuple([replica for replica in heard if engine_fault(replica, config) is None])


def hold_for_quorum(fresh_count: int, ready_count: int, quorum: float) -> str | None:
    """Hold when too few of the ready replicas are fresh to judge the cluster."""
    if ready_count == 0:
        return "held_no_ready_replicas"
    return "held_by_quorum" if fresh_count == 0 or fresh_count < quorum * ready_count else None


def hold_for_stale(current: DirectiveMode, wanted: DirectiveMode, stale_count: int) -> str | None:
    """Stay in FP8 while a replica is silent: it may be the loaded one. Entering rests on fresh replicas alone."""
    leaving = current is DirectiveMode.FP8 and wanted is not DirectiveMode.FP8
    return "held_by_stale_replica" if leaving and stale_count > 0 else None


def hold_for_dwell(now_s: float, current: DirectiveMode, state: GuardState, config: GuardConfig) -> str | None:
    """Hold until the present mode has had its shortest stay."""
    dwell_s = config.dwell_fp8_s if current is DirectiveMode.FP8 else config.dwell_fp16_s
    if state.changed_at_s is None or now_s - state.changed_at_s >= dwell_s:
        return None
    return "held_by_dwell"


def hold_for_flip_rate(now_s: float, state: GuardState, config: GuardConfig) -> str | None:
    """Hold when the last minute has seen as many switches as allowed."""
    most, times_s = config.max_switches_per_minute, state.switches_at_s
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
    guards: GuardConfig,
    guard_state: GuardState,
) -> GuardedDecision:
    """Ask the policy and apply every guard: first quorum; then the policy; and for a proposal to change, the rest."""
    if not spec.adaptive:
        proposal, policy_state = spec.decide(observation, policy_state, policy_config)
        return GuardedDecision(proposal, policy_state, proposal.mode)
    now_s, current = observation.now_s, observation.current
    ready = warmed_up(observation.replicas, guards.warm_up_s)
    heard = fresh(ready, guards.stale_after_s)
    evidence = usable(heard, guards)
    if (hold := hold_for_quorum(len(evidence), len(ready), guards.quorum)) is not None:
        if not len(ready) and len(warmed_up(observation.replicas)):
            hold = "held_by_warm_up"
        return GuardedDecision(stay(observation, hold), policy_state, None, hold)
    proposal, policy_state = spec.decide(replace(observation, replicas=evidence), policy_state, policy_config)
    if len(evidence) < len(heard) and proposal.mode is current and current is not DirectiveMode.FP8:
        proposal = replace(proposal, reason=ENGINE_STUCK)  # whatever the others do, the SLO does not hold there
    silent = set(ids_of(ready)) - set(ids_of(evidence))
    if spec.keeps_own_pace:
        kept = {replica_id: observation.mode_of(replica_id) for replica_id in silent}
        proposal = replace(proposal, exceptions={**proposal.exceptions, **kept})
        return GuardedDecision(proposal, policy_state, proposal.mode)
    if proposal.mode is current:
        return GuardedDecision(proposal, policy_state, current)
    hold = (
        hold_for_stale(current, proposal.mode, len(ready) - len(evidence))
        or hold_for_dwell(now_s, current, guard_state, guards)
        or hold_for_flip_rate(now_s, guard_state, guards)
    )
    decision = proposal if hold is None else replace(stay(observation, hold), inputs=proposal.inputs)
    return GuardedDecision(decision, policy_state, proposal.mode, hold)


def stay(observation: Observation, reason: str) -> Decision:
    """What is in force, but for the rule, which a guard does not know."""
    return Decision(observation.current, reason, exceptions=observation.exceptions)
