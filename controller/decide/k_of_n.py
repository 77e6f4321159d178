"""The scope k_of_n: FP8 on as many replicas as the load needs. Zero I/O."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from controller.audit import Scope
from controller.config import ControllerConfig
from controller.decide import guards
from controller.decide.scope import (
    CLUSTER,
    BaseScope,
    ClusterScope,
    ReplicaScope,
    Scoped,
    ScopeInput,
    ScopePlan,
    compact,
    modes_now,
    moves,
)
from controller.fleet.view import Replicas, ReplicaView, ids_of
from controller.policies import POLICIES
from controller.policies.base import Decision
from controller.protocol import Content
from nestedfp.modes import DirectiveMode

FP8 = DirectiveMode.FP8


def make_scope(config: ControllerConfig) -> Scoped:
    """The scope that the configuration names."""
    if not POLICIES[config.policy.name].adaptive or config.scope is Scope.CLUSTER:
        return ClusterScope(config)
    return ReplicaScope(config) if config.scope is Scope.REPLICA else SubsetScope(config)


class SubsetScope(BaseScope):
    """FP8 on as many replicas as the load needs; one policy looks at all of them.

    The policy is asked twice. Asked as if its calm directive were in force it tells whether the SLO is in danger: K grows.
    Asked as if FP8 were, it tells whether FP16 would do: K shrinks. In between K stays, or follows the load if that is known.
    """

    def __init__(self, config: ControllerConfig) -> None:
        super().__init__(config)
        self._grew_at_s: float | None = None
        self._shrank_at_s: float | None = None
        self._replicas: dict[str, guards.GuardState] = {}
        self._calm, _ = self._spec.start(config.policy)  # what the policy last wanted when it did not want FP8

    def decide(self, scope_input: ScopeInput) -> ScopePlan:
        config = self._config
        modes = modes_now(ids_of(scope_input.views), scope_input.current)
        in_fp8 = {replica_id for replica_id, mode in modes.items() if mode is FP8}
        current = FP8 if in_fp8 else self._calm.mode
        observation = self._observation(scope_input, scope_input.views, current)
        proposed = guards.propose(
            self._spec, observation, self._policy_state, config.policy, config.guards, scope_input.faulty
        )
        before_state, self._policy_state = self._policy_state, proposed.policy_state
        proposal = proposed.proposal
        if proposal is None:
            return self._plan(scope_input, modes, proposed.decision, None, {CLUSTER: (None, str(proposed.held))})
        in_danger = proposal.mode is FP8
        if proposal.mode is not FP8:
            self._calm = proposal
        elif in_fp8:
            entering = replace(observation, current=self._calm.mode)
            danger = guards.propose(
                self._spec, entering, before_state, config.policy, config.guards, scope_input.faulty
            ).proposal
            in_danger = danger is not None and danger.mode is FP8
            if danger is not None and not in_danger:
                self._calm = danger
        ready = guards.usable(guards.warmed_up(scope_input.views, config.guards.warm_up_s), config.guards)
        ready_ids = ids_of(ready)
        present = sum([replica_id in in_fp8 for replica_id in ready_ids])
        wanted = self._wanted(proposal, in_danger, present, len(ready))
        hold_ = self._hold(scope_input.now_s, present, wanted, proposed)
        inputs = (
            *proposal.inputs,
            ("replicas", len(ready)),
            ("fp8_replicas", present),
            ("fp8_replicas_wanted", wanted),
        )
        calm = self._calm.mode
        decision = replace(proposal, mode=FP8 if wanted else calm, inputs=inputs)
        # An idle proposal can still bring another calm directive: engines of their own may choose now, or no more.
        recalmed = len(in_fp8) + (0 if calm is FP8 else list(modes.values()).count(calm)) < len(modes)
        if (wanted == present and not recalmed) or hold_ is not None:
            held: dict[str, tuple[DirectiveMode | None, str]] = {}
            if hold_ is not None:
                decision = replace(decision, mode=current, reason=hold_)
                held = {CLUSTER: (FP8 if wanted > present else calm, hold_)}
            return self._plan(scope_input, modes, decision, proposal.mode, held)
        frozen = {
            replica_id
            for replica_id, state in self._replicas.items()
            if guards.hold_for_flip_rate(scope_input.now_s, state, config.guards) is not None
        }
        selected = chosen(ready, in_fp8, wanted, frozen)
        modes |= {replica_id: FP8 if replica_id in selected else calm for replica_id in ready_ids}
        held = {replica_id: (None, "held_by_flip_rate") for replica_id in frozen if replica_id in modes}
        return self._plan(scope_input, modes, decision, proposal.mode, held)

    def _wanted(self, proposal: Decision, in_danger: bool, present: int, replicas: int) -> int:
        settings = self._config.k_of_n
        enough = needed(replicas, proposal.fp16_load, proposal.fp8_load, settings.target_utilisation)
        if in_danger:
            return grown(present, replicas, enough)
        if enough is not None and enough > present and proposal.mode is FP8:
            return enough
        ample = needed(
            replicas, proposal.fp16_load, proposal.fp8_load, settings.target_utilisation * settings.shrink_margin
        )
        if ample is not None and present:
            return min(present, max(1, ample) if proposal.mode is FP8 else ample)
        return present if proposal.mode is FP8 else max(0, present - 1)

    def _hold(self, now_s: float, present: int, wanted: int, proposed: guards.GuardedDecision) -> str | None:
        bounds = self._config.guards
        if wanted > present:
            grew, shrank = self._grew_at_s, self._shrank_at_s
            soon = (grew is not None and now_s - grew < self._config.k_of_n.grow_every_s) or (
                shrank is not None and now_s - shrank < bounds.dwell_fp16_s
            )
            return "held_by_dwell" if soon else None
        if wanted < present:
            stale = guards.hold_for_stale(FP8, self._calm.mode, proposed.silent_count, implausible=proposed.implausible)
            if stale is not None:
                return stale
            last = max((at for at in (self._grew_at_s, self._shrank_at_s) if at is not None), default=None)
            return "held_by_dwell" if last is not None and now_s - last < bounds.dwell_fp8_s else None
        return None

    def _plan(
        self,
        scope_input: ScopeInput,
        modes: Mapping[str, DirectiveMode],
        decision: Decision,
        wanted: DirectiveMode | None,
        held: Mapping[str, tuple[DirectiveMode | None, str]],
    ) -> ScopePlan:
        before = modes_now(modes, scope_input.current)
        reasons = {replica_id: decision.reason for replica_id, mode in modes.items() if mode is not before[replica_id]}
        mode, exceptions = compact(modes, scope_input.current.mode)
        return ScopePlan(mode, self._calm.rule, exceptions, decision, wanted, held, reasons)

    def changed(self, now_s: float, before: Content, after: Content, replica_ids: Collection[str]) -> None:
        moved = moves(before, after, replica_ids)
        for replica_id in moved:
            self._replicas[replica_id] = guards.switched(now_s, self._replicas.get(replica_id, guards.GuardState()))
        if len(self._replicas) > 2 * len(replica_ids):
            self._replicas = {r: state for r, state in self._replicas.items() if r in replica_ids}
        if FP8 in moved.values():
            self._grew_at_s = now_s
        elif moved:
            self._shrank_at_s = now_s


def needed(replicas: int, fp16_load: float | None, fp8_load: float | None, utilisation: float) -> int | None:
    """The smallest K that serves the load; None when the loads are not known or FP8 is no faster."""
    if fp16_load is None or fp8_load is None or replicas == 0:
        return None
    if fp16_load <= utilisation:
        return 0
    if fp8_load <= 0 or fp16_load <= fp8_load:
        return None
    ratio = fp16_load / fp8_load
    wanted = replicas * (fp16_load / utilisation - 1.0) / (ratio - 1.0)
    return min(replicas, math.ceil(wanted - 1e-9))


def grown(present: int, replicas: int, needed_count: int | None) -> int:
    """K while the SLO is in danger: what the load needs, but more than now; doubled when that is not known."""
    if needed_count is not None and needed_count > present:
        return needed_count
    return min(replicas, max(1, 2 * present))


def chosen(ready: Replicas, in_fp8: Collection[str], wanted: int, frozen: Collection[str] = ()) -> frozenset[str]:
    """The replicas that run FP8: those that do already first, then the most loaded; of several, by name.

    ``frozen`` replicas keep what they do, because they have changed too often.
    """
    able = [view for view in ready if not view.snapshot.fp16_only]
    stay = {replica_id for replica_id in ids_of(able) if replica_id in frozen and replica_id in in_fp8}

    def rank(view: ReplicaView) -> tuple[bool, float, int, int, str]:
        one = view.snapshot
        return one.replica_id not in in_fp8, -one.oldest_wait_s, -one.waiting_tokens, -one.running, one.replica_id

    free = sorted([view for view in able if view.replica_id not in frozen], key=rank)
    return frozenset(stay.union(ids_of(free[: max(0, wanted - len(stay))])))
