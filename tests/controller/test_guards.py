"""Guards as tables, then in their order round a policy."""

from typing import Any

import pytest
from controller_builders import make_view
from hypothesis import given
from hypothesis import strategies as st

from controller.decide.guards import Plan, guarded_decide
from controller.fleet.view import ReplicaView
from controller.policies import POLICIES
from controller.policies.base import Observation
from controller.policies.threshold import Threshold
from nestedfp.modes import DirectiveMode

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO
HOT = {"oldest_wait_s": 5.0}


def judge(
    *replicas: ReplicaView,
    current: DirectiveMode = FP16,
    now_s: float = 100.0,
    policy: str = "threshold",
) -> Plan:
    spec = POLICIES[policy]
    config = spec.config(**({"leave_after_s": 0} if policy == "threshold" else {}))
    return guarded_decide(spec, Observation(now_s=now_s, replicas=replicas, current=current), spec.start(), config)


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
        ([{}, {"age_s": 2.0}], {"current": FP8}, FP16, "below_leave", FP16),
        ([{}], {"current": FP8}, FP16, "below_leave", FP16),
        ([HOT, {"age_s": 2.0}, {"age_s": 2.0}], {}, FP16, "held_by_quorum", None),
        # cold starts are no overload
        ([{**HOT, "ready_for_s": 1.9}, {}], {}, FP16, "below_enter", FP16),
        ([{**HOT, "ready_for_s": 2.0}, {}], {}, FP8, "wait_ratio_over_enter", FP8),
        ([], {"policy": "static_fp16", "current": FP8}, FP16, "static_fp16", FP16),
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


def test_a_silent_replica_stays_as_it_is_while_the_others_change() -> None:
    views = make_view(replica_id="r0"), make_view(replica_id="r1", age_s=2.0)
    assert judge(*views, current=FP8).decision.exceptions == {"r1": FP8}


@given(st.lists(st.tuples(st.floats(0.01, 5), st.booleans()), max_size=200))
def test_no_load_ends_fp8_before_it_has_been_calm_for_long_enough(steps: list[tuple[float, bool]]) -> None:
    spec, config = POLICIES["threshold"], Threshold(leave_after_s=5.0)
    now_s, current, state, hot_s = 0.0, FP16, spec.start(), 0.0
    for pause_s, hot in steps:
        now_s += pause_s
        hot_s = now_s if hot else hot_s
        seen = Observation(now_s=now_s, replicas=(make_view(**(HOT if hot else {})),), current=current)
        plan = guarded_decide(spec, seen, state, config)
        assert plan.decision.mode is FP16 or hot or current is FP8
        assert plan.decision.mode is FP8 or current is FP16 or now_s - hot_s >= 5.0
        current, state = plan.decision.mode, plan.policy_state
