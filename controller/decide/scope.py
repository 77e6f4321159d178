"""For whom a decision holds: a policy and its guards round the whole cluster, each replica, or K of N. Zero I/O.

A scope turns what is known about the replicas into a ``ScopePlan``: a mode for most and exceptions by replica. It does not
publish: the loop may hold the plan back (operator, ladder, advisory mode) and tells the scope what came into force.
Policies that do not observe (``adaptive`` is False) decide for the cluster in every scope.
"""

import bisect
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from controller.config import ControllerConfig, GuardConfig
from controller.decide import guards
from controller.fleet import path_limit
from controller.fleet.view import Replicas, ReplicaView, ids_of
from controller.policies import POLICIES
from controller.policies.base import Decision, Observation
from controller.protocol import NO_RULE, Content
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule

CLUSTER = ""  # the key of the cluster among held units


@dataclass(frozen=True, slots=True)
class ScopeInput:
    """All that a scope may look at."""

    now_s: float
    views: Replicas
    current: Content  # in force, whoever put it there
    faulty: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class ScopePlan:
    """What a scope wants to be in force."""

    mode: DirectiveMode
    rule: StepRule
    exceptions: Mapping[str, DirectiveMode]
    decision: Decision  # reason, inputs and loads, for the cluster as a whole
    wanted: DirectiveMode | None = None  # the policy's proposal; None: not asked, or replicas differ
    held: Mapping[str, tuple[DirectiveMode | None, str]] = field(default_factory=dict)  # unit -> proposal, guard
    reasons: Mapping[str, str] = field(default_factory=dict)  # of the replicas that change

    @property
    def rule_in_use(self) -> StepRule:
        """The rule, where a replica follows one: it is no content otherwise, and must not raise the epoch."""
        auto = DirectiveMode.AUTO
        return self.rule if self.mode is auto or auto in self.exceptions.values() else NO_RULE


class Scoped(Protocol):
    """A policy at work in a scope."""

    def decide(self, scope_input: ScopeInput) -> ScopePlan:
        """What should be in force now."""

    def changed(self, now_s: float, before: Content, after: Content, replica_ids: Collection[str]) -> None:
        """Note what came into force."""

    def reconfigure(self, config: ControllerConfig) -> None:
        """Go on under another configuration of the same scope."""


def compact(modes: Mapping[str, DirectiveMode], base: DirectiveMode) -> tuple[DirectiveMode, dict[str, DirectiveMode]]:
    """The mode of most replicas (``base`` on a tie), and the replicas that differ from it."""
    present = list(modes.values())
    counts = {mode: present.count(mode) for mode in DirectiveMode}
    most = max(counts.values())
    if counts[base] < most:
        base = next(mode for mode in DirectiveMode if counts[mode] == most)
    return base, {replica_id: mode for replica_id, mode in modes.items() if mode is not base}


def modes_now(replica_ids: Collection[str], current: Content) -> dict[str, DirectiveMode]:
    """The mode of each replica."""
    modes = dict.fromkeys(replica_ids, current.mode)
    modes.update((replica_id, mode) for replica_id, mode in current.exceptions.items() if replica_id in modes)
    return modes


def ready_counts(views: Replicas, content: Content) -> tuple[int, int]:
    """How many replicas are ready, and how many of them are directed to FP16 or auto."""
    ready = guards.warmed_up(views)
    if content.exceptions:
        return len(ready), sum([content.mode_for(replica_id) is not DirectiveMode.FP8 for replica_id in ids_of(ready)])
    return len(ready), 0 if content.mode is DirectiveMode.FP8 else len(ready)


def moves(before: Content, after: Content, replica_ids: Collection[str]) -> dict[str, DirectiveMode]:
    """The replicas whose modes differ, and their modes afterwards."""
    old = modes_now(replica_ids, before)
    return {
        replica_id: mode for replica_id, mode in modes_now(replica_ids, after).items() if mode is not old[replica_id]
    }


def keep_fp8(plan: ScopePlan, current: Content, views: Replicas) -> ScopePlan:
    """The plan without what takes FP8 off a replica: precision is the last thing that the ladder gives back."""
    fp8 = DirectiveMode.FP8
    planned = modes_now(ids_of(views), Content(plan.mode, exceptions=plan.exceptions))
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

    def _observation(self, scope_input: ScopeInput, views: Replicas, current: DirectiveMode) -> Observation:
        return Observation(now_s=scope_input.now_s, replicas=views, current=current, slo=self._config.slo)


class ClusterScope(BaseScope):
    """One decision for all replicas."""

    def __init__(self, config: ControllerConfig) -> None:
        super().__init__(config)
        self._guard_state = guards.GuardState()

    def decide(self, scope_input: ScopeInput) -> ScopePlan:
        guarded = guards.guarded_decide(
            self._spec,
            self._observation(scope_input, scope_input.views, scope_input.current.mode),
            self._policy_state,
            self._config.policy,
            self._config.guards,
            self._guard_state,
            scope_input.faulty,
        )
        self._policy_state = guarded.policy_state
        decision = guarded.decision
        rule = scope_input.current.rule if guarded.held is not None else decision.rule
        held = {} if guarded.held is None else {CLUSTER: (guarded.wanted, guarded.held)}
        return ScopePlan(decision.mode, rule, {}, decision, guarded.wanted, held)

    def changed(self, now_s: float, before: Content, after: Content, replica_ids: Collection[str]) -> None:
        # Another rule of the same mode is no switch: a policy that steers the rule must stay free to enter FP8.
        if before.mode is not after.mode:
            self._guard_state = guards.switched(now_s, self._guard_state)


@dataclass(slots=True)
class _Unit:
    """One replica: the policy's memory of it, and what was decided last."""

    policy_state: Any
    guard_state: guards.GuardState = field(default_factory=guards.GuardState)
    decision: Decision | None = None
    held: tuple[DirectiveMode | None, str] | None = None


class ReplicaScope(BaseScope):
    """A decision for each replica, from that replica's load alone.

    A step asks for ``replicas_per_step`` of them at most, in turn: what it costs must not grow with the cluster.
    """

    def __init__(self, config: ControllerConfig) -> None:
        super().__init__(config)
        self._units: dict[str, _Unit] = {}
        self._asked_last = ""

    def decide(self, scope_input: ScopeInput) -> ScopePlan:
        views, current = scope_input.views, scope_input.current
        modes = modes_now(ids_of(views), current)
        if len(self._units) > len(modes):
            self._units = {replica_id: unit for replica_id, unit in self._units.items() if replica_id in modes}
        # The number expected concerns the cluster: a unit has one replica.
        bounds = self._config.guards
        if bounds.expected_replicas is not None:
            bounds = bounds.model_copy(update={"expected_replicas": None})
        reasons: dict[str, str] = {}
        for view in self._turn(views):
            replica_id = view.replica_id
            unit = self._decide_one(scope_input, view, modes[replica_id], bounds)
            assert unit.decision is not None, "a unit that was asked has decided"
            if unit.decision.mode is not modes[replica_id]:
                modes[replica_id], reasons[replica_id] = unit.decision.mode, unit.decision.reason
        held = {replica_id: unit.held for replica_id, unit in self._units.items() if unit.held is not None}
        mode, exceptions = compact(modes, current.mode)
        decisions = [unit.decision for unit in self._units.values() if unit.decision is not None]
        # One that is held has no rule of its own: the others' holds for it as well.
        rules = [
            unit.decision.rule
            for unit in self._units.values()
            if unit.held is None and unit.decision is not None and unit.decision.mode is DirectiveMode.AUTO
        ]
        summary = Decision(
            mode,
            _together(reasons, held, decisions) if modes else "held_no_ready_replicas",
            inputs=_counts(modes, held),
            fp16_load=_mean([decision.fp16_load for decision in decisions]),
            fp8_load=_mean([decision.fp8_load for decision in decisions]),
        )
        return ScopePlan(mode, rules[0] if rules else current.rule, exceptions, summary, None, held, reasons)

    def _turn(self, views: Replicas) -> Replicas:
        """The next replicas to be asked for, by name after those of the last step, and round again."""
        count = self._config.replicas_per_step
        if len(views) <= count:
            return views
        start = bisect.bisect_right(ids_of(views), self._asked_last)
        turn = (*views[start : start + count], *views[: max(0, start + count - len(views))])
        self._asked_last = turn[-1].replica_id
        return turn

    def _decide_one(
        self, scope_input: ScopeInput, view: ReplicaView, current: DirectiveMode, bounds: GuardConfig
    ) -> _Unit:
        replica_id = view.replica_id
        unit = self._units.get(replica_id)
        if unit is None:
            unit = self._units[replica_id] = _Unit(self._start())
        guarded = guards.guarded_decide(
            self._spec,
            self._observation(scope_input, (view,), current),
            unit.policy_state,
            self._config.policy,
            bounds,
            unit.guard_state,
            (replica_id,) if replica_id in scope_input.faulty else (),
        )
        unit.policy_state, unit.decision = guarded.policy_state, guarded.decision
        unit.held = None if guarded.held is None else (guarded.wanted, guarded.held)
        return unit

    def changed(self, now_s: float, before: Content, after: Content, replica_ids: Collection[str]) -> None:
        for replica_id in moves(before, after, replica_ids):
            unit = self._units.get(replica_id)
            if unit is None:
                unit = self._units[replica_id] = _Unit(self._start())
            unit.guard_state = guards.switched(now_s, unit.guard_state)

    def _forget(self) -> None:
        for unit in self._units.values():
            unit.policy_state = self._start()


def _together(
    reasons: Mapping[str, str], held: Mapping[str, tuple[DirectiveMode | None, str]], decisions: Collection[Decision]
) -> str:
    """One reason for many replicas: the most frequent of those that change, or of those held back."""
    words = list(reasons.values()) or [hold for _, hold in held.values()]
    if words:
        return Counter(words).most_common(1)[0][0]
    return (
        path_limit.REASON
        if any(decision.reason == path_limit.REASON for decision in decisions)
        else "no_replica_changes"
    )


def _counts(
    modes: Mapping[str, DirectiveMode], held: Mapping[str, tuple[DirectiveMode | None, str]]
) -> tuple[tuple[str, float], ...]:
    in_fp8 = list(modes.values()).count(DirectiveMode.FP8)
    return (("replicas", len(modes)), ("fp8_replicas", in_fp8), ("held_replicas", len(held)))


def _mean(loads: list[float | None]) -> float | None:
    known = [load for load in loads if load is not None]
    return sum(known) / len(known) if known else None
