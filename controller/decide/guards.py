"""What may hold back a policy: warm-up, quorum, silence. And the operator, who overrules all.

Each guard is in seconds and none in ticks, so that a change of the step period changes nothing. Missing data argues against a
change (as in Kubernetes' horizontal autoscaler): with too few replicas to judge by all stay as they are, and so does a silent one.
How often a policy changes anything is its own to say.
"""

from dataclasses import dataclass, replace
from typing import Any

from controller.fleet.view import Replicas, ids_of
from controller.policies.base import Decision, Observation, PolicySpec
from controller.protocol.publisher import NO_RULE, Content
from nestedfp.modes import DirectiveMode
from workload.frozen import FrozenModel

STALE_AFTER_S = 1.0  # silence after which a snapshot is no evidence
QUORUM = 0.5  # share of the replicas that must be ready and fresh
WARM_UP_S = 2.0  # a replica that has been ready for less is no evidence


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


def guarded_decide(
    spec: PolicySpec[Any, Any], observation: Observation, policy_state: Any, policy_config: FrozenModel
) -> Plan:
    """Ask the policy, unless too few of the ready replicas are fresh to judge the cluster."""
    if not spec.adaptive:
        proposal, policy_state = spec.decide(observation, policy_state, policy_config)
        return Plan(proposal, proposal.mode, None, policy_state)
    ready = warmed_up(observation.replicas)
    evidence = fresh(ready)
    if len(evidence) < max(1, QUORUM * len(ready)):
        unready = "held_by_warm_up" if serving(observation.replicas) else "held_no_ready_replicas"
        hold = "held_by_quorum" if ready else unready
        # But for the rule, which is not known here.
        stay = Decision(observation.current, hold, exceptions=observation.exceptions)
        return Plan(stay, None, hold, policy_state)
    proposal, policy_state = spec.decide(replace(observation, replicas=evidence), policy_state, policy_config)
    if silent := set(ids_of(ready)) - set(ids_of(evidence)):
        kept = {replica_id: observation.mode_of(replica_id) for replica_id in silent}
        proposal = replace(proposal, exceptions={**proposal.exceptions, **kept})
    return Plan(proposal, proposal.mode, None, policy_state)


def keep_fp8(plan: Plan, current: Content, views: Replicas) -> Plan:
    """The plan without what takes FP8 off a replica: precision is the last thing that the ladder gives back."""
    fp8, decision = DirectiveMode.FP8, plan.decision
    planned = {replica_id: decision.mode_of(replica_id) for replica_id in ids_of(views)}
    kept = {r: mode for r, mode in planned.items() if mode is not fp8 and current.mode_for(r) is not fp8}
    if len(kept) == sum(mode is not fp8 for mode in planned.values()):
        return plan
    decision = replace(decision, mode=fp8, exceptions=kept, reason="held_by_ladder")
    return replace(plan, decision=decision, held="held_by_ladder")
