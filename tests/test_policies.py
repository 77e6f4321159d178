"""Policies as tables: observation -> decision and reason."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from controller_builders import make_rates, make_view, window
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policies import POLICIES, slo_feedback, threshold
from controller.policies.base import Decision, Observation, ReplicaView
from controller.policies.fixed import EngineAuto, StaticFp8, StaticFp16, TokenFraction
from controller.policies.slo_feedback import Capacity, SloFeedback
from controller.policies.threshold import Band, Threshold
from nestedfp.modes import DirectiveMode, Mode
from nestedfp.step_rule import StepRule

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO
CALM_FP8 = {"mode": Mode.FP8, "step_ms_fp16": None, "step_ms_fp8": 10.0}


def observe(*replicas: ReplicaView, current: DirectiveMode = FP16, now_s: float = 100.0) -> Observation:
    return Observation(now_s=now_s, replicas=replicas, current=current)


@pytest.mark.parametrize(
    ("name", "config", "decision"),
    [
        ("static_fp16", StaticFp16(), Decision(FP16, "static_fp16")),
        ("static_fp8", StaticFp8(), Decision(FP8, "static_fp8")),
        (
            "engine_auto",
            EngineAuto(step_budget_tokens=2048, fp8_budget_fraction=0.25, fp8_wait_s=0.5),
            Decision(AUTO, "engine_auto", StepRule(fp8_step_tokens=512, fp8_wait_s=0.5)),
        ),
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
    assert spec.start(config) == (decision, None)
    assert spec.decide(observe(), None, config) == (decision, None)
    assert spec.decide(overloaded, None, config) == (decision, None)


@pytest.mark.parametrize(
    ("current", "replica", "mode", "reason"),
    [
        (FP16, {}, FP16, "below_enter"),
        (FP16, {"oldest_wait_s": 0.1}, FP16, "below_enter"),  # at the band is not past it
        (FP16, {"oldest_wait_s": 0.11}, FP8, "wait_s_over_enter"),
        (FP16, {"waiting_tokens": 8193}, FP8, "waiting_tokens_over_enter"),
        (FP16, {"ttft": window(181)}, FP8, "ttft_p90_ms_over_enter"),
        (FP16, {"tpot": window(31)}, FP8, "tpot_p90_ms_over_enter"),
        (FP16, {"tpot": window(31, count=4)}, FP16, "below_enter"),  # too few samples to enter on
        (FP8, {}, FP16, "below_leave"),
        (FP8, {"oldest_wait_s": 0.05}, FP8, "wait_s_over_leave"),
        (FP8, {"waiting_tokens": 1024}, FP8, "waiting_tokens_over_leave"),
        (FP8, {"tpot": window(20, count=1)}, FP8, "tpot_p90_ms_over_leave"),  # but enough to stay on
        (FP8, {"oldest_wait_s": 0.5}, FP8, "wait_s_over_enter"),
        (AUTO, {}, FP16, "below_enter"),
    ],
)
def test_threshold(current: DirectiveMode, replica: dict[str, Any], mode: DirectiveMode, reason: str) -> None:
    calm = make_view(replica_id="calm")
    decision, _ = threshold.decide(observe(calm, make_view(**replica), current=current), None, Threshold())
    assert (decision.mode, decision.reason) == (mode, reason)
    assert "wait_s" in dict(decision.inputs)


def test_a_band_that_is_off_is_not_looked_at() -> None:
    config = Threshold(wait_s=None, waiting_tokens=None, tpot_p90_ms=None, ttft_p90_ms=Band(enter=9, leave=3))
    hot = make_view(oldest_wait_s=9, waiting_tokens=10**6, tpot=window(500))
    decision, _ = threshold.decide(observe(hot), None, config)
    assert (decision.mode, tuple(dict(decision.inputs))) == (FP16, ("ttft_p90_ms",))


@pytest.mark.parametrize(
    ("replica", "mode", "reason"),
    [
        ({}, FP16, "slo_holds"),
        ({"oldest_wait_s": 0.15}, FP16, "slo_holds"),  # 150 ms + a step of 15 ms < 0.85 * 200 ms
        ({"oldest_wait_s": 0.16}, FP8, "predicted_ttft_over_enter"),
        ({"waiting": 1, "waiting_tokens": 10**6}, FP16, "slo_holds"),  # it arrived just now: no queue stands yet
        ({"waiting": 1, "waiting_tokens": 300, "standing_tokens": 200}, FP8, "predicted_ttft_over_enter"),
        ({"waiting": 1, "waiting_tokens": 100, "standing_tokens": 100}, FP16, "slo_holds"),  # drains within 100 ms
        ({"tpot": window(29)}, FP8, "tpot_over_enter"),
        ({"tpot": window(29, count=4)}, FP16, "slo_holds"),
        ({"step_ms_fp16": 29.0}, FP8, "tpot_over_enter"),  # steps lead, the window follows
        ({"step_ms_fp16": None}, FP16, "slo_holds"),
        ({"tpot": window(500), "step_ms_fp16": 500.0, "running": 0}, FP16, "slo_holds"),  # idle: old news
    ],
)
def test_slo_feedback_enters_fp8_on_danger(replica: dict[str, Any], mode: DirectiveMode, reason: str) -> None:
    decision, _ = slo_feedback.decide(observe(make_view(**replica)), (), SloFeedback())
    assert (decision.mode, decision.reason) == (mode, reason)
    assert set(dict(decision.inputs)) == {"predicted_ttft_ms", "tpot_ms"}


def test_a_growing_queue_counts_as_what_it_will_be() -> None:
    replica = {"waiting": 1, "waiting_tokens": 50, "standing_tokens": 50}
    steady = make_view(**replica)
    growing = make_view(**replica, rates=make_rates(arrived_tokens=2000.0, waiting_tokens=1000.0))
    config = SloFeedback()
    assert slo_feedback.predicted_ttft_ms(steady, config) == pytest.approx(50 + 15)
    assert slo_feedback.predicted_ttft_ms(growing, config) == pytest.approx(1050 + 15)


@pytest.mark.parametrize(
    ("replica", "mode", "reason"),
    [
        ({}, FP16, "fp16_would_hold_slo"),  # 10 ms * 1.6 < 0.7 * 33.3 ms
        ({"step_ms_fp8": 15.0}, FP8, "fp16_would_miss_tpot"),
        ({"tpot": window(15.0)}, FP8, "fp16_would_miss_tpot"),  # short steps, but a tail
        ({"step_ms_fp8": None}, FP8, "load_unknown"),
        ({"step_ms_fp16": 30.0}, FP16, "fp16_would_hold_slo"),  # measured before the burst: not trusted
        ({"oldest_wait_s": 0.1}, FP8, "fp16_would_miss_ttft"),
        ({"kv_usage": 0.6}, FP8, "fp16_would_fill_kv"),
        ({"running": 0, "kv_usage": 0.6, "step_ms_fp8": 99.0}, FP16, "fp16_would_hold_slo"),
    ],
)
def test_slo_feedback_leaves_fp8_when_fp16_would_do(replica: dict[str, Any], mode: DirectiveMode, reason: str) -> None:
    view = make_view(**{**CALM_FP8, **replica})
    decision, _ = slo_feedback.decide(observe(view, current=FP8), (), SloFeedback())
    assert (decision.mode, decision.reason) == (mode, reason)


def test_slo_feedback_stays_in_fp8_without_rates() -> None:
    view = replace(make_view(**CALM_FP8), rates=None)
    decision, _ = slo_feedback.decide(observe(view, current=FP8), (), SloFeedback())
    assert (decision.mode, decision.reason) == (FP8, "load_unknown")


def test_an_fp16_step_seen_lately_is_trusted_over_the_ratio() -> None:
    view = replace(make_view(**{**CALM_FP8, "step_ms_fp16": 30.0}), fp16_step_age_s=1.0)
    decision, _ = slo_feedback.decide(observe(view, current=FP8), (), SloFeedback())
    assert (decision.mode, decision.reason) == (FP8, "fp16_would_miss_tpot")


def test_slo_feedback_remembers_at_which_load_fp16_could_no_more() -> None:
    config = SloFeedback()
    overload = make_view(waiting=9, waiting_tokens=900, standing_tokens=500, oldest_wait_s=1.0)
    decision, state = slo_feedback.decide(observe(overload, now_s=100.0), (), config)
    assert decision.mode is FP8
    assert state == (Capacity("r0", 1200.0, 100.0),)

    same_load = make_view(**CALM_FP8, rates=make_rates(tokens_fp16=0.0, tokens_fp8=1200.0))
    decision, state = slo_feedback.decide(observe(same_load, current=FP8, now_s=130.0), state, config)
    assert (decision.mode, decision.reason) == (FP8, "fp16_would_be_overloaded")

    less_load = make_view(**CALM_FP8, rates=make_rates(tokens_fp16=0.0, tokens_fp8=1000.0))
    decision, _ = slo_feedback.decide(observe(less_load, current=FP8, now_s=131.0), state, config)
    assert (decision.mode, decision.reason) == (FP16, "fp16_would_hold_slo")

    decision, state = slo_feedback.decide(observe(same_load, current=FP8, now_s=401.0), state, config)
    assert (decision.mode, state) == (FP16, ())


def test_a_standing_queue_in_fp8_counts_in_fp16_equivalents() -> None:
    rates = make_rates(tokens_fp16=0.0, tokens_fp8=1600.0)
    overload = make_view(**CALM_FP8, waiting=9, waiting_tokens=900, standing_tokens=500, rates=rates)
    _, state = slo_feedback.decide(observe(overload, current=FP8), (), SloFeedback())
    assert state[0].tokens_per_s == pytest.approx(1000.0)


def near(*marks: float) -> st.SearchStrategy[float]:
    """Around the values that matter, so that few examples meet many edges."""
    return st.sampled_from(marks).flatmap(lambda mark: st.floats(mark / 1.3, mark * 1.3))


signals = st.fixed_dictionaries(
    {
        "waiting": st.integers(0, 3),
        "running": st.integers(0, 3),
        "waiting_tokens": st.sampled_from([0, 100, 1000, 8000, 100000]),
        "standing_tokens": st.sampled_from([0, 100, 1000]),
        "oldest_wait_s": near(0.0, 0.02, 0.1, 0.18, 5.0),
        "kv_usage": near(0.0, 0.3, 0.6),
        "step_ms_fp16": st.none() | near(10.0, 23.0, 28.0, 33.0),
        "step_ms_fp8": st.none() | near(10.0, 15.0, 28.0, 33.0),
        "mode": st.sampled_from(Mode),
        "ttft": st.builds(window, near(50.0, 90.0, 180.0), st.integers(1, 9)),
        "tpot": st.builds(window, near(10.0, 15.0, 23.0, 28.0, 33.0), st.integers(1, 9)),
    }
)


@settings(max_examples=300, deadline=None)
@given(signals, st.sampled_from(["threshold", "slo_feedback"]))
def test_entering_and_leaving_never_both_hold(replica: dict[str, Any], name: str) -> None:
    """A policy that wants FP8 from FP16 must not want FP16 from FP8 on the same evidence: it would flip for ever."""
    spec = POLICIES[name]
    config = spec.config()
    _, state = spec.start(config)
    view = make_view(**replica)
    from_fp16, _ = spec.decide(observe(view, current=FP16), state, config)
    from_fp8, _ = spec.decide(observe(view, current=FP8), state, config)
    same_mode = view.snapshot.mode is Mode.FP8 or name == "threshold"
    assert not (same_mode and from_fp16.mode is FP8 and from_fp8.mode is FP16), (from_fp16, from_fp8)


@settings(deadline=None)
@given(signals, st.sampled_from(["threshold", "slo_feedback"]), st.floats(0, 100))
def test_a_longer_wait_never_argues_for_fp16(replica: dict[str, Any], name: str, more_s: float) -> None:
    spec = POLICIES[name]
    config = spec.config()
    _, state = spec.start(config)
    for current in (FP16, FP8):
        before, _ = spec.decide(observe(make_view(**replica), current=current), state, config)
        worse = {**replica, "oldest_wait_s": replica["oldest_wait_s"] + more_s}
        after, _ = spec.decide(observe(make_view(**worse), current=current), state, config)
        assert not (before.mode is FP8 and after.mode is FP16)


def test_every_reason_is_machine_readable() -> None:
    for path in Path(slo_feedback.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Decision":
                reason = node.args[1]
                if isinstance(reason, ast.Constant):
                    assert str(reason.value).replace("_", "").isalnum(), f"{path.name}: {reason.value!r}"
