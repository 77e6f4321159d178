"""For whom a decision holds: a policy and its guards round the whole cluster, each replica, or K of N. Zero I/O.

A scope turns what is known about the replicas into a ``Plan``: a mode for most and exceptions by replica. It does not
publish: the loop may hold the plan back (operator, ladder, advisory mode) and tells the scope what came into force.
Policies that do not observe (``adaptive`` is False) decide for the cluster in every scope.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from controller import guards
from controller.config import ControllerConfig
from controller.policies import POLICIES
from controller.policies.base import Decision, Observation, ReplicaView
from controller.protocol import NO_RULE, Content
from nestedfp.modes import DirectiveMode
from nestedfp.step_rule import StepRule

CLUSTER = ""  # the key of the cluster among held units


@dataclass(frozen=True, slots=True)
class Sight:
    """All that a scope may look at."""

    now_s: float
    views: tuple[ReplicaView, ...]
    current: Content  # in force, whoever put it there
    faulty: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a scope wants to be in force."""

    mode: DirectiveMode
    rule: StepRule
    exceptions: Mapping[str, DirectiveMode]
    decision: Decision  # reason, inputs and loads, for the cluster as a whole
    wanted: DirectiveMode | None = None  # the policy's wish; None: not asked, or replicas differ
    held: Mapping[str, tuple[DirectiveMode | None, str]] = field(default_factory=dict)  # unit -> wish, guard
    reasons: Mapping[str, str] = field(default_factory=dict)  # of the replicas that change


class Scoped(Protocol):
    """A policy at work in a scope."""

    def decide(self, sight: Sight) -> Plan:
        """What should be in force now."""

    def changed(self, now_s: float, before: Content, after: Content, replica_ids: Collection[str]) -> None:
        """Note what came into force."""

    def reconfigure(self, config: ControllerConfig) -> None:
        """Go on under another configuration of the same scope."""


def compact(modes: Mapping[str, DirectiveMode], base: DirectiveMode) -> tuple[DirectiveMode, dict[str, DirectiveMode]]:
    """The mode of most replicas (``base`` on a tie), and the replicas that differ from it."""
    counts = Counter(modes.values())
    if counts:
        most = max(counts.values())
        if counts[base] < most:
            base = next(mode for mode in DirectiveMode if counts[mode] == most)
    return base, {replica_id: mode for replica_id, mode in modes.items() if mode is not base}


def keep_fp8(plan: Plan, current: Content, views: tuple[ReplicaView, ...]) -> Plan:
    """The plan without what takes FP8 off a replica: precision is the last thing that the ladder gives back."""
    fp8 = DirectiveMode.FP8
    planned = {view.replica_id: plan.exceptions.get(view.replica_id, plan.mode) for view in views}
    leaving = {r: fp8 for r, mode in planned.items() if mode is not fp8 and current.mode_for(r) is fp8}
    if not leaving:
        return plan
    mode, exceptions = compact(planned | leaving, current.mode)
    return replace(
        plan,
        mode=mode,
        exceptions=exceptions,
        decision=replace(plan.decision, mode=mode, reason="held_by_ladder"),
        held={**plan.held, CLUSTER: (plan.wanted, "held_by_ladder")},
        reasons={replica_id: why for replica_id, why in plan.reasons.items() if replica_id not in leaving},
    )


class BaseScope:
    """What the scopes share: the policy, and how to ask it."""

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config
        self._spec = POLICIES[config.policy.name]
        self._policy_state: Any = self._start()

    def _start(self) -> Any:
        return self._spec.start(self._config.policy)[1]

    def reconfigure(self, config: ControllerConfig) -> None:
        # A state may be shaped by the parameters it was made under: it survives only if those do.
        fresh = config.policy != self._config.policy
        self._config, self._spec = config, POLICIES[config.policy.name]
        if fresh:
            self._forget()

    def _forget(self) -> None:
        self._policy_state = self._start()

    def _observation(self, sight: Sight, views: tuple[ReplicaView, ...], current: DirectiveMode) -> Observation:
        return Observation(now_s=sight.now_s, replicas=views, current=current, slo=self._config.slo)


class ClusterScope(BaseScope):
    """One decision for all replicas."""

    def __init__(self, config: ControllerConfig) -> None:
        super().__init__(config)
        self._guard_state = guards.GuardState()

    def decide(self, sight: Sight) -> Plan:
        verdict = guards.guarded_decide(
            self._spec,
            self._observation(sight, sight.views, sight.current.mode),
            self._policy_state,
            self._config.policy,
            self._config.guards,
            self._guard_state,
            sight.faulty,
        )
        self._policy_state = verdict.policy_state
        decision = verdict.decision
        rule = sight.current.rule if verdict.held is not None else decision.rule
        held = {} if verdict.held is None else {CLUSTER: (verdict.wanted, verdict.held)}
        return Plan(decision.mode, rule, {}, decision, verdict.wanted, held)

    def changed(self, now_s: float, before: Content, after: Content, replica_ids: Collection[str]) -> None:
        if before.mode is not after.mode or before.rule != after.rule:
            self._guard_state = guards.switched(now_s, self._guard_state)


@dataclass(slots=True)
class _Unit:
    """The policy's memory of one replica."""

    policy_state: Any
    guard_state: guards.GuardState = field(default_factory=guards.GuardState)


class ReplicaScope(BaseScope):
    """A decision for each replica, from that replica's load alone."""

    def __init__(self, config: ControllerConfig) -> None:
        super().__init__(config)
        self._units: dict[str, _Unit] = {}

    def decide(self, sight: Sight) -> Plan:
        # The number expected concerns the cluster: a unit has one replica.
        bounds = self._config.guards.model_copy(update={"expected_replicas": None})
        modes: dict[str, DirectiveMode] = {}
        held: dict[str, tuple[DirectiveMode | None, str]] = {}
        reasons: dict[str, str] = {}
        decisions: list[Decision] = []
        for view in sight.views:
            replica_id, current = view.replica_id, sight.current.mode_for(view.replica_id)
            unit = self._units.get(replica_id)
            if unit is None:
                unit = self._units[replica_id] = _Unit(self._start())
            faulty = (replica_id,) if replica_id in sight.faulty else ()
            verdict = guards.guarded_decide(
                self._spec,
                self._observation(sight, (view,), current),
                unit.policy_state,
                self._config.policy,
                bounds,
                unit.guard_state,
                faulty,
            )
            unit.policy_state = verdict.policy_state
            modes[replica_id] = verdict.decision.mode
            decisions.append(verdict.decision)
            if verdict.held is not None:
                held[replica_id] = (verdict.wanted, verdict.held)
            if verdict.decision.mode is not current:
                reasons[replica_id] = verdict.decision.reason
        if len(self._units) > len(modes):
            self._units = {replica_id: unit for replica_id, unit in self._units.items() if replica_id in modes}
        mode, exceptions = compact(modes, sight.current.mode)
        rules = [decision.rule for decision in decisions if decision.mode is DirectiveMode.AUTO]
        summary = Decision(
            mode,
            _together(reasons, held) if modes else "held_no_ready_replicas",
            inputs=_counts(modes, held),
            fp16_load=_mean([decision.fp16_load for decision in decisions]),
            fp8_load=_mean([decision.fp8_load for decision in decisions]),
        )
        return Plan(mode, rules[0] if rules else NO_RULE, exceptions, summary, None, held, reasons)

    def changed(self, now_s: float, before: Content, after: Content, replica_ids: Collection[str]) -> None:
        for replica_id in replica_ids:
            if before.mode_for(replica_id) is after.mode_for(replica_id):
                continue
            unit = self._units.get(replica_id)
            if unit is None:
                unit = self._units[replica_id] = _Unit(self._start())
            unit.guard_state = guards.switched(now_s, unit.guard_state)

    def _forget(self) -> None:
        for unit in self._units.values():
            unit.policy_state = self._start()


def _together(reasons: Mapping[str, str], held: Mapping[str, tuple[DirectiveMode | None, str]]) -> str:
    """One reason for many replicas: the most frequent of those that change, or of those held back."""
    words = list(reasons.values()) or [hold for _, hold in held.values()]
    return Counter(words).most_common(1)[0][0] if words else "no_replica_changes"


def _counts(
    modes: Mapping[str, DirectiveMode], held: Mapping[str, tuple[DirectiveMode | None, str]]
) -> tuple[tuple[str, float], ...]:
    in_fp8 = sum(mode is DirectiveMode.FP8 for mode in modes.values())
    return (("replicas", len(modes)), ("fp8_replicas", in_fp8), ("held_replicas", len(held)))


def _mean(loads: list[float | None]) -> float | None:
    known = [load for load in loads if load is not None]
    return sum(known) / len(known) if known else None
