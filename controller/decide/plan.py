"""What a step wants to be in force: the policy at work behind its guards, and the shortest way to say who does what. Zero I/O.

A plan is not published here: the loop may hold it back (operator, ladder) and tells the planner what came into
force.
"""

from dataclasses import dataclass, replace
from typing import Any

from controller.config import ControllerConfig
from controller.decide import guards
from controller.fleet.view import Replicas, ids_of
from controller.policies import POLICIES
from controller.policies.base import Decision, Observation
from controller.protocol import NO_RULE, Content
from nestedfp.modes import DirectiveMode


@dataclass(frozen=True, slots=True)
class Plan:
    """What is wanted in force, and why."""

    decision: Decision
    wanted: DirectiveMode | None = None  # the policy's proposal for most replicas; None: not asked
    held: str | None = None  # the guard that holds it back

    def content(self, admission_scale: float) -> Content:
        """As a directive says it: a rule that no replica follows, and an exception that is none, must not raise the epoch."""
        decision, auto = self.decision, DirectiveMode.AUTO
        exceptions = {name: mode for name, mode in decision.exceptions.items() if mode is not decision.mode}
        follows = decision.mode is auto or auto in exceptions.values()
        follows = follows or (decision.mode is DirectiveMode.FP16 and decision.rule.exact_step_s is not None)
        return Content(decision.mode, decision.rule if follows else NO_RULE, exceptions, admission_scale)


class Planner:
    """Asks the policy, and remembers for it and for its guards."""

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config
        self.spec = POLICIES[config.policy.name]
        self._policy_state: Any = self.spec.start(config.policy)[1]
        self._guard_state = guards.GuardState()

    def reconfigure(self, config: ControllerConfig) -> None:
        """Go on under another configuration: dwell times stay, since a reload must be no way round them."""
        if config.policy != self._config.policy:  # a state may be shaped by the parameters it was made under
            self.spec = POLICIES[config.policy.name]
            self._policy_state = self.spec.start(config.policy)[1]
        self._config = config

    def plan(self, now_s: float, views: Replicas, current: Content) -> Plan:
        """Return what the policy wants, as far as its guards let it."""
        config = self._config
        observation = Observation(now_s, views, current.mode, config.slo, current.exceptions)
        guarded = guards.guarded_decide(self.spec, observation, self._policy_state, config.policy, self._guard_state)
        self._policy_state = guarded.policy_state
        decision = guarded.decision
        if guarded.held is not None:
            decision = replace(decision, rule=current.rule)
        return Plan(decision, guarded.wanted, guarded.held)

    def changed(self, now_s: float, before: Content, after: Content) -> None:
        """Note what came into force. Another rule of the same mode is no switch."""
        if before.mode is not after.mode:
            self._guard_state = guards.switched(now_s, self._guard_state)


def keep_fp8(plan: Plan, current: Content, views: Replicas) -> Plan:
    """The plan without what takes FP8 off a replica: precision is the last thing that the ladder gives back."""
    fp8, decision = DirectiveMode.FP8, plan.decision
    planned = {replica_id: decision.mode_of(replica_id) for replica_id in ids_of(views)}
    kept = {r: mode for r, mode in planned.items() if mode is not fp8 and current.mode_for(r) is not fp8}
    if len(kept) == sum(mode is not fp8 for mode in planned.values()):
        return plan
    decision = replace(decision, mode=fp8, exceptions=kept, reason="held_by_ladder")
    return replace(plan, decision=decision, held="held_by_ladder")
