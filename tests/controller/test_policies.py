"""Policies as tables and properties: observation -> decision and reason."""

import math
from typing import Any

import pytest
from controller_builders import make_rates, make_view, window
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.fleet.view import ReplicaView
from controller.policies import POLICIES, threshold
from controller.policies.base import Decision, Observation
from controller.policies.fixed import StaticFp8, StaticFp16, TokenFraction
from controller.policies.threshold import Hysteresis, Threshold
from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.slo_rule import exact_steps
from nestedfp.steps.step_rule import StepRule
from workload.slo import Slo

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO
ADAPTIVE = [name for name, spec in POLICIES.items() if spec.adaptive]


def observe(*replicas: ReplicaView, current: DirectiveMode = FP16, now_s: float = 100.0) -> Observation:
    return Observation(now_s=now_s, replicas=replicas, current=current)


def decide_for(name: str, view: ReplicaView, current: DirectiveMode, seconds: float = 12.0) -> Decision:
    """The decision after the same has been seen for so long, in steps of a second."""
    spec = POLICIES[name]
    config = spec.config()
    state = spec.start()
    for i in range(int(seconds)):
        decision, state = spec.decide(observe(view, current=current, now_s=100.0 + i), state, config)
    return decision


@pytest.mark.parametrize(
    ("name", "config", "decision"),
    [
        ("static_fp16", StaticFp16(), Decision(FP16, "static_fp16", exact_steps(Slo().tpot_ms))),
        ("static_fp8", StaticFp8(), Decision(FP8, "static_fp8")),
        (
            "token_fraction",
            TokenFraction(fraction=0.4),
            Decision(AUTO, "token_fraction", StepRule(fp8_budget_fraction=0.4)),
        ),
    ],
)
def test_fixed_policies_say_the_same_whatever_they_see(name: str, config: Any, decision: Decision) -> None:
    spec = POLICIES[name]
    overloaded = observe(make_view(oldest_wait_s=60.0), current=FP8)
    assert spec.decide(observe(), None, config) == (decision, None)
    assert spec.decide(overloaded, None, config) == (decision, None)


@pytest.mark.parametrize(
    ("current", "replica", "mode", "reason"),
    [
        (FP16, {}, FP16, "below_enter"),
        (FP16, {"oldest_wait_s": 0.1}, FP16, "below_enter"),  # at the band is not past it
        (FP16, {"oldest_wait_s": 0.11}, FP8, "wait_ratio_over_enter"),
        (FP16, {"waiting_tokens": 8193}, FP8, "waiting_tokens_over_enter"),
        (FP16, {"ttft": window(181)}, FP8, "ttft_ratio_over_enter"),
        (FP16, {"tpot": window(31)}, FP8, "tpot_ratio_over_enter"),
        (FP16, {"tpot": window(31, count=4)}, FP16, "below_enter"),  # too few samples to enter on
        (FP8, {}, FP16, "below_leave"),
        (FP8, {"oldest_wait_s": 0.05}, FP8, "wait_ratio_over_leave"),
        (FP8, {"waiting_tokens": 1024}, FP8, "waiting_tokens_over_leave"),
        (FP8, {"tpot": window(20, count=1)}, FP8, "tpot_ratio_over_leave"),  # but enough to stay on
        (FP8, {"oldest_wait_s": 0.5}, FP8, "wait_ratio_over_enter"),
        (AUTO, {}, FP16, "below_enter"),
    ],
)
def test_threshold(current: DirectiveMode, replica: dict[str, Any], mode: DirectiveMode, reason: str) -> None:
    calm = make_view(replica_id="calm")
    spec = POLICIES["threshold"]
    config = Threshold(leave_after_s=0)
    state = spec.start()
    decision, _ = threshold.decide(observe(calm, make_view(**replica), current=current), state, config)
    assert (decision.mode, decision.reason) == (mode, reason)
    assert "wait_ratio" in dict(decision.inputs)


def test_threshold_leaves_once_it_has_been_calm_for_long_enough() -> None:
    config = Threshold(leave_after_s=5.0)
    state = threshold.SPEC.start()
    reasons = []
    for now_s, wait_s in [(0, 0), (4, 0), (4.5, 0.05), (5, 0), (9.9, 0), (10, 0)]:
        seen = observe(make_view(oldest_wait_s=wait_s), current=FP8, now_s=now_s)
        decision, state = threshold.decide(seen, state, config)
        reasons.append(decision.reason)
    assert reasons == [*["calm_too_short"] * 2, "wait_ratio_over_leave", *["calm_too_short"] * 2, "below_leave"]


def test_a_band_that_is_off_is_not_looked_at() -> None:
    config = Threshold(wait_ratio=None, waiting_tokens=None, tpot_ratio=None, ttft_ratio=Hysteresis(enter=9, leave=3))
    hot = make_view(oldest_wait_s=9, waiting_tokens=10**6, tpot=window(500))
    decision, _ = threshold.decide(observe(hot), threshold.SPEC.start(), config)
    assert (decision.mode, tuple(dict(decision.inputs))) == (FP16, ("ttft_ratio",))


@pytest.mark.parametrize(("troubled", "mode"), [(5, FP16), (6, FP8)])
def test_of_many_replicas_a_few_may_be_in_trouble(troubled: int, mode: DirectiveMode) -> None:
    replicas = [make_view(replica_id=f"r{i:03}", oldest_wait_s=9.0 if i < troubled else 0.0) for i in range(100)]
    config = Threshold()
    decision, _ = threshold.decide(observe(*replicas), threshold.SPEC.start(), config)
    assert decision.mode is mode


def near(*marks: float) -> st.SearchStrategy[float]:
    """Around the values that matter, so that few examples meet many edges."""
    return st.sampled_from(marks).flatmap(lambda mark: st.floats(mark / 1.3, mark * 1.3))


signals = st.fixed_dictionaries(
    {
        "waiting": st.integers(0, 3),
        "running": st.integers(0, 3),
        "waiting_tokens": st.sampled_from([0, 100, 1000, 8000, 100000]),
        "oldest_wait_s": near(0.0, 0.02, 0.1, 0.18, 5.0),
        "kv_usage": near(0.0, 0.3, 0.6),
        "step_ms_fp16": st.none() | near(10.0, 23.0, 28.0, 33.0),
        "step_ms_fp8": st.none() | near(10.0, 15.0, 28.0, 33.0),
        "mode": st.sampled_from(Mode),
        "ttft": st.builds(window, near(50.0, 90.0, 180.0), st.integers(1, 9)),
        "tpot": st.builds(window, near(10.0, 15.0, 23.0, 28.0, 33.0), st.integers(1, 9)),
    }
)


@settings(max_examples=100)
@given(signals, st.sampled_from(ADAPTIVE), st.floats(0, 100))
def test_a_longer_wait_never_argues_for_fp16(replica: dict[str, Any], name: str, more_s: float) -> None:
    worse = {**replica, "oldest_wait_s": replica["oldest_wait_s"] + more_s}
    for current in (FP16, FP8):
        before = decide_for(name, make_view(**replica), current)
        after = decide_for(name, make_view(**worse), current)
        assert not (before.mode is FP8 and after.mode is not FP8)


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("current", list(DirectiveMode))
def test_without_replicas_nothing_argues_for_fp8(name: str, current: DirectiveMode) -> None:
    spec = POLICIES[name]
    config = spec.config()
    state = spec.start()
    for now_s in (0.0, 1.0, 100.0):
        decision, state = spec.decide(observe(now_s=now_s, current=current), state, config)
        assert decision.mode is not FP8 or current is FP8


HUGE = st.sampled_from([0.0, 1e-300, 1.0, 1e9, 1e300, 1.7e308])
absurd = st.fixed_dictionaries(
    {
        "waiting": st.sampled_from([0, 1, 10**18]),
        "running": st.sampled_from([0, 1, 10**18]),
        "waiting_tokens": st.sampled_from([0, 1, 10**30]),
        "oldest_wait_s": HUGE,
        "kv_usage": st.sampled_from([0.0, 1.0]),
        "step_ms_fp16": st.none() | HUGE,
        "step_ms_fp8": st.none() | HUGE,
        "mode": st.sampled_from(Mode),
        "tpot": st.builds(window, HUGE, st.sampled_from([0, 1, 10**18])),
        "rates": st.builds(
            make_rates,
            arrivals_per_s=HUGE,
            arrived_tokens_per_s=st.sampled_from([0.0, 1e-300, 1e7]),
            tokens_per_s=st.sampled_from([0.0, 1e-300, 1e7]),
            queue_growth_tokens_per_s=st.sampled_from([-1e300, -1.0, 0.0, 1e300]),
            slo_evaluated=st.sampled_from([-1e300, 0.0, 1e-300, 1e300]),
            within_slo=st.sampled_from([-1e300, 0.0, 1e-300, 1e300]),
        ),
    }
)
times = st.lists(st.sampled_from([0.0, 1e-9, 0.1, 5.0, -60.0, 1e9]), min_size=4, max_size=8)


@settings(max_examples=150)
@given(st.lists(absurd, min_size=1, max_size=3), times, st.sampled_from(ADAPTIVE), st.sampled_from(DirectiveMode))
def test_absurd_values_never_crash_nor_give_what_no_log_can_hold(
    replicas: list[dict[str, Any]], pauses_s: list[float], name: str, current: DirectiveMode
) -> None:
    spec = POLICIES[name]
    config = spec.config()
    state = spec.start()
    views = [make_view(replica_id=f"r{i}", **replica) for i, replica in enumerate(replicas)]
    now_s = 0.0
    for i, pause_s in enumerate(pauses_s):
        now_s += pause_s
        decision, state = spec.decide(observe(views[i % len(views)], current=current, now_s=now_s), state, config)
        values = [value for _, value in decision.inputs]
        assert all(map(math.isfinite, values)), decision
