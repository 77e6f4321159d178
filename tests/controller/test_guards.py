"""Guards as tables, then in their order round a policy."""

import itertools
from typing import Any

import pytest
from controller_builders import make_view
from hypothesis import given
from hypothesis import strategies as st

from controller.decide.guards import GuardState, Plan, guarded_decide, switched
from controller.fleet.view import ReplicaView
from controller.policies import POLICIES
from controller.policies.base import Observation
from nestedfp.modes import DirectiveMode

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO
HOT = {"oldest_wait_s": 5.0}


def judge(
    *replicas: ReplicaView,
    current: DirectiveMode = FP16,
    now_s: float = 100.0,
    policy: str = "threshold",
    state: GuardState | None = None,
    **pace: float,
) -> Plan:
    spec = POLICIES[policy]
    config = spec.config(**({"leave_after_s": 0, **pace} if policy == "threshold" else {}))
    return guarded_decide(
        spec,
        Observation(now_s=now_s, replicas=replicas, current=current),
        spec.start(),
        config,
        state or GuardState(),
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
        # to the second
        ([HOT], {"state": GuardState(98.0, (98.0,))}, FP8, "wait_ratio_over_enter", FP8),
        ([{}], {"current": FP8, "state": GuardState(80.0, (80.0,))}, FP16, "below_leave", FP16),
        ([HOT], {"state": GuardState(40.0, (40.0,) * 6)}, FP8, "wait_ratio_over_enter", FP8),
        ([HOT, {"age_s": 2.0}, {"age_s": 2.0}], {}, FP16, "held_by_quorum", None),
        # cold starts are no overload
        ([{**HOT, "ready_for_s": 1.9}, {}], {}, FP16, "below_enter", FP16),
        ([{**HOT, "ready_for_s": 2.0}, {}], {}, FP8, "wait_ratio_over_enter", FP8),
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
    pace = {"dwell_fp16_s": 2.0, "dwell_fp8_s": 5.0, "max_switches_per_minute": 4}
    now_s, current, state = 0.0, FP16, GuardState()
    changes: list[tuple[float, DirectiveMode]] = []
    for pause_s, hot in steps:
        now_s += pause_s
        view = make_view(**(HOT if hot else {}))
        guarded = judge(view, current=current, now_s=now_s, state=state, **pace)
        if guarded.decision.mode is not current:
            changes.append((now_s, guarded.decision.mode))
            current, state = guarded.decision.mode, switched(now_s, state)
    for (before_s, entered), (after_s, _) in itertools.pairwise(changes):
        assert after_s - before_s >= (2.0 if entered is FP16 else 5.0)
    for at_s, _ in changes:
        assert sum(at_s <= other_s < at_s + 60 for other_s, _ in changes) <= 4
