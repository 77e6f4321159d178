"""Guards as tables, then in their order round a policy."""

import itertools
from typing import Any

import pytest
from controller_builders import make_view
from hypothesis import given
from hypothesis import strategies as st

from controller.config import GuardConfig
from controller.decide.guards import (
    GuardedDecision,
    GuardState,
    fresh,
    guarded_decide,
    hold_for_dwell,
    hold_for_flip_rate,
    hold_for_quorum,
    hold_for_stale,
    switched,
    warmed_up,
)
from controller.decide.overrides import Override, override_in_force
from controller.fleet.view import ReplicaView
from controller.policies import POLICIES
from controller.policies.base import Observation
from nestedfp.modes import DirectiveMode

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO
HOT = {"oldest_wait_s": 5.0}


@pytest.mark.parametrize(
    ("fresh_count", "ready_count", "held"),
    [
        (0, 0, "held_no_ready_replicas"),
        (0, 1, "held_by_quorum"),
        (1, 1, None),
        (1, 2, None),
        (1, 3, "held_by_quorum"),
        (2, 4, None),
    ],
)
def test_quorum_of_half(fresh_count: int, ready_count: int, held: str | None) -> None:
    assert hold_for_quorum(fresh_count, ready_count, 0.5) == held


def test_a_quorum_of_zero_still_needs_one_fresh_replica() -> None:
    assert hold_for_quorum(0, 3, 0.0) == "held_by_quorum"
    assert hold_for_quorum(1, 30, 0.0) is None


@pytest.mark.parametrize(
    ("current", "wanted", "stale_count", "held"),
    [
        (FP8, FP16, 1, "held_by_stale_replica"),
        (FP8, AUTO, 1, "held_by_stale_replica"),
        (FP8, FP16, 0, None),
        (FP16, FP8, 1, None),  # the fresh ones alone are too slow: the silent one cannot argue against that
    ],
)
def test_a_silent_replica_keeps_the_cluster_in_fp8(
    current: DirectiveMode, wanted: DirectiveMode, stale_count: int, held: str | None
) -> None:
    assert hold_for_stale(current, wanted, stale_count) == held


@pytest.mark.parametrize(
    ("current", "after_s", "held"),
    [
        (FP16, 1.9, "held_by_dwell"),
        (FP16, 2.0, None),
        (FP8, 19.9, "held_by_dwell"),
        (FP8, 20.0, None),
        (AUTO, 1.9, "held_by_dwell"),
        (AUTO, 2.0, None),
    ],
)
def test_dwell(current: DirectiveMode, after_s: float, held: str | None) -> None:
    state = GuardState(changed_at_s=64.0)
    assert hold_for_dwell(64.0 + after_s, current, state, GuardConfig()) == held


def test_the_first_mode_has_no_dwell() -> None:
    assert hold_for_dwell(0.0, FP16, GuardState(), GuardConfig()) is None


def test_flip_rate_counts_the_last_minute_only() -> None:
    config = GuardConfig(max_switches_per_minute=2)
    state = switched(10.0, switched(0.0, GuardState()))
    assert hold_for_flip_rate(59.9, state, config) == "held_by_flip_rate"
    assert hold_for_flip_rate(60.0, state, config) is None
    assert switched(65.0, state) == GuardState(65.0, (10.0, 65.0))


@pytest.mark.parametrize(("now_s", "holds"), [(0.0, True), (9.9, True), (10.0, False)])
def test_an_override_expires(now_s: float, holds: bool) -> None:
    assert (override_in_force(now_s, Override(FP8, 10.0)) is not None) is holds
    assert override_in_force(now_s, Override(FP8)) is not None


def test_warm_up_and_silence_are_left_out() -> None:
    warming, silent, good = make_view(ready=False), make_view(age_s=2.0), make_view()
    assert warmed_up((warming, silent, good)) == (silent, good)
    assert fresh((warming, silent, good), 1.0) == (warming, good)


def judge(
    *replicas: ReplicaView,
    current: DirectiveMode = FP16,
    now_s: float = 100.0,
    policy: str = "threshold",
    guards: GuardConfig | None = None,
    state: GuardState | None = None,
    faulty: tuple[str, ...] = (),
) -> GuardedDecision:
    spec = POLICIES[policy]
    config = spec.config(**({"leave_after_s": 0} if policy == "threshold" else {}))
    return guarded_decide(
        spec,
        Observation(now_s=now_s, replicas=replicas, current=current),
        spec.start(config)[1],
        config,
        guards or GuardConfig(),
        state or GuardState(),
        faulty,
    )


@pytest.mark.parametrize(
    ("replicas", "options", "mode", "reason", "wanted"),
    [
        ([HOT], {}, FP8, "wait_ratio_over_enter", FP8),
        ([{}], {}, FP16, "below_enter", FP16),
        ([], {}, FP16, "held_no_ready_replicas", None),
        ([{**HOT, "ready": False}], {}, FP16, "held_no_ready_replicas", None),
        ([{**HOT, "ready": False}, {}], {}, FP16, "below_enter", FP16),
        ([{**HOT, "age_s": 2.0}], {}, FP16, "held_by_quorum", None),
        ([{**HOT, "age_s": 2.0}, {}], {}, FP16, "below_enter", FP16),
        ([HOT, {"age_s": 2.0}], {}, FP8, "wait_ratio_over_enter", FP8),
        ([{}, {"age_s": 2.0}], {"current": FP8}, FP8, "held_by_stale_replica", FP16),
        ([{}], {"current": FP8}, FP16, "below_leave", FP16),
        ([{}], {"current": FP8, "state": GuardState(90.0, (90.0,))}, FP8, "held_by_dwell", FP16),
        ([HOT], {"state": GuardState(99.0, (99.0,))}, FP16, "held_by_dwell", FP8),
        ([HOT], {"state": GuardState(90.0, (80.0,) * 6)}, FP16, "held_by_flip_rate", FP8),
        # of four that should be there one is too few, whatever it says
        ([HOT], {"guards": GuardConfig(expected_replicas=4)}, FP16, "held_by_quorum", None),
        ([HOT], {"guards": GuardConfig(expected_replicas=2)}, FP8, "wait_ratio_over_enter", FP8),
        # cold starts are no overload
        ([{**HOT, "ready_for_s": 1.9}, {}], {}, FP16, "below_enter", FP16),
        ([{**HOT, "ready_for_s": 2.0}, {}], {}, FP8, "wait_ratio_over_enter", FP8),
        (
            [{}, {"age_s": 2.0, "replica_id": "r1"}],
            {"current": FP8, "faulty": ("r1",)},
            FP8,
            "held_by_implausible_replica",
            FP16,
        ),
        ([], {"policy": "static_fp16", "current": FP8, "state": GuardState(99.9)}, FP16, "static_fp16", FP16),
    ],
)
def test_guards_round_a_policy(
    replicas: list[dict[str, Any]],
    options: dict[str, Any],
    mode: DirectiveMode,
    reason: str,
    wanted: DirectiveMode | None,
) -> None:
    guarded = judge(*(make_view(**replica) for replica in replicas), **options)
    assert (guarded.decision.mode, guarded.decision.reason, guarded.wanted) == (mode, reason, wanted)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.booleans()), max_size=200))
def test_no_load_makes_the_mode_change_faster_than_the_guards_allow(steps: list[tuple[float, bool]]) -> None:
    config = GuardConfig(dwell_fp16_s=2.0, dwell_fp8_s=5.0, max_switches_per_minute=4)
    now_s, current, state = 0.0, FP16, GuardState()
    changes: list[tuple[float, DirectiveMode]] = []
    for pause_s, hot in steps:
        now_s += pause_s
        view = make_view(**(HOT if hot else {}))
        guarded = judge(view, current=current, now_s=now_s, guards=config, state=state)
        if guarded.decision.mode is not current:
            changes.append((now_s, guarded.decision.mode))
            current, state = guarded.decision.mode, switched(now_s, state)
    for (before_s, entered), (after_s, _) in itertools.pairwise(changes):
        assert after_s - before_s >= (2.0 if entered is FP16 else 5.0)
    for at_s, _ in changes:
        assert sum(at_s <= other_s < at_s + 60 for other_s, _ in changes) <= 4
