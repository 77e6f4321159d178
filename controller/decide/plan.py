"""What a step wants to be in force: the policy at work behind its guards, and the shortest way to say who does what. Zero I/O.

A plan is not published here: the loop may hold it back (operator, ladder) and tells the planner what came into
force.
"""

from dataclasses import replace
from typing import Any

from controller.config import ControllerConfig
from controller.decide import guards
from controller.decide.guards import Plan
from controller.fleet.view import Replicas, ids_of
from controller.policies import POLICIES
from controller.policies.base import Observation
from controller.protocol import Content
from nestedfp.modes import DirectiveMode


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
        plan = guards.guarded_decide(self.spec, observation, self._policy_state, config.policy, self._guard_state)
        self._policy_state = plan.policy_state
        return plan if plan.held is None else replace(plan, decision=replace(plan.decision, rule=current.rule))

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
