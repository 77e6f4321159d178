"""What may hold back a policy: warm-up, quorum, stale data, dwell time, flip rate. And the operator, who overrules all.

Each guard is a pure function, all in seconds and none in ticks, so that a change of the step period changes nothing.
Missing data argues against a change (as in Kubernetes' horizontal autoscaler): a silent replica is taken to be calm
when the policy wants FP8, and to be loaded when it wants to leave it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from controller.policies.base import Decision, Observation, PolicySpec, ReplicaView, Settings
from nestedfp.modes import DirectiveMode

MINUTE_S = 60.0


class GuardConfig(Settings):
    """Bounds on how a policy may act.

    Azure's bursts last 20 s at the median, so that FP8 is entered within seconds and then held for about as long.
    """

    dwell_fp16_s: Annotated[float, Field(ge=0)] = 2.0  # shortest stay in FP16
    dwell_fp8_s: Annotated[float, Field(ge=0)] = 20.0  # shortest stay in FP8
    max_switches_per_minute: Annotated[int, Field(ge=1)] = 6
    stale_after_s: Annotated[float, Field(gt=0)] = 1.0  # silence after which a snapshot is no evidence
    quorum: Annotated[float, Field(ge=0, le=1)] = 0.5  # share of the ready replicas that must be fresh


@dataclass(frozen=True, slots=True)
class GuardState:
    """When the mode changed."""

    changed_at_s: float | None = None  # None: the mode of the start is still in force
    switches_at_s: tuple[float, ...] = ()  # of the last minute


@dataclass(frozen=True, slots=True)
class Override:
    """The operator's word."""

    mode: DirectiveMode  # fp16 or fp8; auto means "no override" and is never stored
    expires_at_s: float | None = None  # None: until handed back

    def __post_init__(self) -> None:
        assert self.mode is not DirectiveMode.AUTO, "an override to auto hands back to the policy; store None instead"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comes out of policy and guards together."""

    decision: Decision  # what to do; its mode is the present one when a guard holds
    wanted: DirectiveMode | None  # the policy's wish; None when it was not asked
    policy_state: Any


def warmed_up(replicas: tuple[ReplicaView, ...]) -> tuple[ReplicaView, ...]:
    """The replicas that serve: times measured during warm-up would look like an overload."""
    return tuple(replica for replica in replicas if replica.snapshot.ready)


def fresh(replicas: tuple[ReplicaView, ...], stale_after_s: float) -> tuple[ReplicaView, ...]:
    """The replicas heard of lately."""
    return tuple(replica for replica in replicas if replica.age_s <= stale_after_s)


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
    dwell_s = {DirectiveMode.FP16: config.dwell_fp16_s, DirectiveMode.FP8: config.dwell_fp8_s}.get(current, 0.0)
    if state.changed_at_s is None or now_s - state.changed_at_s >= dwell_s:
        return None
    return "held_by_dwell"


def hold_for_flip_rate(now_s: float, state: GuardState, config: GuardConfig) -> str | None:
    """Hold when the last minute has seen as many switches as allowed."""
    recent = sum(now_s - at_s < MINUTE_S for at_s in state.switches_at_s)
    return "held_by_flip_rate" if recent >= config.max_switches_per_minute else None


def override_in_force(now_s: float, override: Override | None) -> Override | None:
    """The override, unless it has expired."""
    if override is None or (override.expires_at_s is not None and now_s >= override.expires_at_s):
        return None
    return override


def switched(now_s: float, state: GuardState) -> GuardState:
    """Note a switch."""
    recent = tuple(at_s for at_s in state.switches_at_s if now_s - at_s < MINUTE_S)
    return replace(state, changed_at_s=now_s, switches_at_s=(*recent, now_s))


def guarded_decide(
    spec: PolicySpec[Any, Any],
    observation: Observation,
    policy_state: Any,
    policy_config: Settings,
    guards: GuardConfig,
    guard_state: GuardState,
    override: Override | None,
) -> Verdict:
    """Ask the policy and apply every guard.

    The order: the operator; then, for policies that observe, quorum; the policy; and for a wish to change, the rest.
    """
    now_s, current = observation.now_s, observation.current
    if (ordered := override_in_force(now_s, override)) is not None:
        return Verdict(Decision(ordered.mode, "override"), None, policy_state)
    if not spec.adaptive:
        decision, policy_state = spec.decide(observation, policy_state, policy_config)
        return Verdict(decision, decision.mode, policy_state)

    ready = warmed_up(observation.replicas)
    usable = fresh(ready, guards.stale_after_s)
    if (hold := hold_for_quorum(len(usable), len(ready), guards.quorum)) is not None:
        return Verdict(Decision(current, hold), None, policy_state)
    wish, policy_state = spec.decide(replace(observation, replicas=usable), policy_state, policy_config)
    if wish.mode is current:
        return Verdict(wish, wish.mode, policy_state)
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: hold_for_stale(current, wish.mode, len(ready) - len(usable)),
        lambda: hold_for_dwell(now_s, current, guard_state, guards),
        lambda: hold_for_flip_rate(now_s, guard_state, guards),
    )
    for check in checks:
        if (hold := check()) is not None:
            return Verdict(Decision(current, hold, inputs=wish.inputs), wish.mode, policy_state)
    return Verdict(wish, wish.mode, policy_state)
