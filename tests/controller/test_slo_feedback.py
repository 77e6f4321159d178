"""slo_feedback and slo_auto as tables: danger enters FP8, predictions and failed returns keep it."""

from dataclasses import replace
from typing import Any

import pytest
from controller_builders import make_rates, make_view, window
from pydantic import ValidationError

from controller.fleet.view import ReplicaView
from controller.policies import slo_feedback
from controller.policies.base import Decision, Observation
from controller.policies.signals import backoff
from controller.policies.slo_feedback import SloAuto, SloFeedback
from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.step_rule import StepRule

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO
CALM_FP8 = {"mode": Mode.FP8, "step_ms_fp16": None, "step_ms_fp8": 10.0}
IN_FP8 = make_rates(tokens_fp16_per_s=0.0, tokens_fp8_per_s=1200.0)


def observe(*replicas: ReplicaView, current: DirectiveMode = FP16, now_s: float = 100.0) -> Observation:
    return Observation(now_s=now_s, replicas=replicas, current=current)


def after(
    seconds: float, *views: ReplicaView, current: DirectiveMode = FP16, config: Any = None
) -> tuple[Decision, slo_feedback.State]:
    """The decision when the same has been seen for so long, ten times a second."""
    config = config or SloFeedback()
    _, state = slo_feedback.start(config)
    for i in range(round(seconds * 10) + 1):
        decision, state = slo_feedback.decide(observe(*views, current=current, now_s=100.0 + i / 10), state, config)
    return decision, state


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
        ({"step_ms_fp16": 29.0}, FP8, "tpot_over_enter"),
        ({"step_ms_fp16": 29.0, "rates": make_rates(steps_fp16_per_s=50.0)}, FP16, "slo_holds"),  # the mean step: 20 ms
        ({"step_ms_fp16": None}, FP16, "slo_holds"),
        ({"tpot": window(500), "step_ms_fp16": 500.0, "running": 0}, FP16, "slo_holds"),  # idle: old news
    ],
)
def test_danger_enters_fp8(replica: dict[str, Any], mode: DirectiveMode, reason: str) -> None:
    decision, _ = after(1.0, make_view(**replica))
    assert (decision.mode, decision.reason) == (mode, reason)
    assert {"predicted_ttft_ms", "tpot_ms", "ttft_strain"} <= set(dict(decision.inputs))


@pytest.mark.parametrize(
    ("waits_s", "within_s"),
    [((0.2,), 0.7), ((2.0,), 0.2), ((0.2, 0, 0, 0), 4.9), ((9.0, 0, 0, 0), 0.6), ((0.2,) * 4, 0.7)],
)
def test_the_graver_the_danger_and_the_more_replicas_the_sooner(waits_s: tuple[float, ...], within_s: float) -> None:
    views = [make_view(replica_id=f"r{i}", oldest_wait_s=wait_s) for i, wait_s in enumerate(waits_s)]
    config = SloFeedback()
    _, state = slo_feedback.start(config)
    for i in range(100):
        decision, state = slo_feedback.decide(observe(*views, now_s=i / 10), state, config)
        if decision.mode is FP8:
            break
    assert i / 10 <= within_s


def test_a_stall_of_a_fifth_of_a_second_is_no_danger() -> None:
    config = SloFeedback()
    _, state = slo_feedback.start(config)
    for i in range(300):
        view = make_view(oldest_wait_s=0.18 if i % 30 < 2 else 0.0)
        decision, state = slo_feedback.decide(observe(view, now_s=i / 10), state, config)
        assert decision.mode is FP16


@pytest.mark.parametrize(
    ("replica", "mode", "reason"),
    [
        ({}, FP16, "fp16_would_hold_slo"),  # 10 ms * 1.6 < 0.7 * 33.3 ms
        ({"step_ms_fp8": 15.0}, FP8, "fp16_would_miss_tpot"),
        ({"tpot": window(15.0)}, FP8, "fp16_would_miss_tpot"),
        ({"step_ms_fp8": None}, FP8, "load_unknown"),
        ({"step_ms_fp16": 30.0}, FP16, "fp16_would_hold_slo"),  # measured before the burst: not trusted
        ({"oldest_wait_s": 0.1}, FP8, "fp16_would_miss_ttft"),
        ({"kv_usage": 0.6}, FP8, "fp16_would_fill_kv"),
        ({"running": 0, "kv_usage": 0.6, "step_ms_fp8": 99.0}, FP16, "fp16_would_hold_slo"),
        (
            {"waiting": 1, "waiting_tokens": 10, "standing_tokens": 10, "rates": replace(IN_FP8, steps_fp8_per_s=40.0)},
            FP8,
            "fp16_would_be_overloaded",  # all that it computes while a queue stands is what FP8 can
        ),
    ],
)
def test_fp8_is_left_when_fp16_would_do(replica: dict[str, Any], mode: DirectiveMode, reason: str) -> None:
    view = make_view(**{**CALM_FP8, "rates": IN_FP8, **replica})
    decision, _ = after(1.0, view, current=FP8)
    assert (decision.mode, decision.reason) == (mode, reason)


def test_fp8_is_kept_without_rates() -> None:
    view = replace(make_view(**CALM_FP8), rates=None)
    decision, _ = after(1.0, view, current=FP8)
    assert (decision.mode, decision.reason) == (FP8, "load_unknown")


def test_an_fp16_step_seen_lately_is_trusted_over_the_ratio() -> None:
    view = replace(make_view(**{**CALM_FP8, "step_ms_fp16": 30.0}), fp16_step_age_s=1.0)
    decision, _ = after(0.5, view, current=FP8)
    assert (decision.mode, decision.reason) == (FP8, "fp16_would_miss_tpot")


@pytest.mark.parametrize(
    ("slo_evaluated", "within", "mode"), [(20.0, 20.0, FP16), (20.0, 19.8, FP16), (20.0, 19.0, FP8)]
)
def test_requests_that_miss_enter_fp8_though_no_replica_looks_ill(
    slo_evaluated: float, within: float, mode: DirectiveMode
) -> None:
    view = make_view(rates=make_rates(slo_evaluated_per_s=slo_evaluated, within_slo_per_s=within))
    decision, _ = after(60.0, view)
    assert decision.mode is mode
    assert decision.reason == ("slo_holds" if mode is FP16 else "too_many_misses")
    early, _ = after(15.0, view)
    assert early.mode is FP16  # misses come in clusters


def test_a_failed_return_doubles_the_wait_and_remembers_the_load() -> None:
    settings = SloFeedback(first_hold_s=10, undo_within_s=60, memory_holds=4)
    history, now_s, holds = backoff.Backoff(), 0.0, []
    history = backoff.proposed(backoff.observe(history, now_s, FP16, 1000.0, settings), FP8)
    for stay_s in (100.0, 30.0, 30.0, 30.0, 61.0):
        now_s += stay_s
        history = backoff.proposed(backoff.observe(history, now_s, FP8, 1000.0 - now_s, settings), FP16)
        holds.append((history.hold_s, history.failed_load))
        now_s += 20.0
        history = backoff.proposed(backoff.observe(history, now_s, FP16, 500.0, settings), FP8)
    assert holds == [(10.0, None), (20.0, 850.0), (40.0, 800.0), (80.0, 750.0), (10.0, None)]


def test_the_remembered_load_is_forgotten_after_four_waits() -> None:
    settings = SloFeedback()
    history = backoff.Backoff(mode=FP8, proposed=FP8, changed_at_s=0.0, hold_s=20.0, failed_load=900.0, failed_at_s=0.0)
    assert backoff.observe(history, 80.0, FP8, 1.0, settings).failed_load == 900.0
    assert backoff.observe(history, 80.1, FP8, 1.0, settings).failed_load is None
    assert backoff.hold_left_s(history, 15.0) == 5.0


def test_an_operators_fp8_is_no_failure_of_fp16() -> None:
    settings = SloFeedback()
    history = backoff.proposed(backoff.observe(backoff.Backoff(), 0.0, FP16, 1000.0, settings), FP16)
    history = backoff.observe(history, 5.0, FP8, 1000.0, settings)
    assert (history.hold_s, history.failed_load) == (0.0, None)


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        (backoff.Backoff(FP8, FP8, 90.0, 40.0), "waits_after_failed_return"),
        (backoff.Backoff(FP8, FP8, 50.0, 40.0, failed_load=1000.0, failed_at_s=50.0), "fp16_failed_at_this_load"),
        (backoff.Backoff(FP8, FP8, 50.0, 40.0, failed_load=2000.0, failed_at_s=50.0), "fp16_would_hold_slo"),
    ],
)
def test_a_failed_return_argues_against_the_next(history: backoff.Backoff, reason: str) -> None:
    _, state = after(5.0, make_view(**CALM_FP8, rates=IN_FP8), current=FP8)
    state = replace(state, memory=replace(state.memory, history=history))
    view = make_view(**CALM_FP8, rates=IN_FP8)
    decision, _ = slo_feedback.decide(observe(view, current=FP8, now_s=105.0), state, SloFeedback())
    assert decision.reason == reason


def test_slo_auto_leaves_single_steps_to_the_engines_while_all_is_well() -> None:
    config = SloAuto()
    assert slo_feedback.start(config)[0].mode is FP16
    calm, _ = after(1.0, make_view(), config=config)
    assert (calm.mode, calm.reason) == (AUTO, "slo_holds")
    assert calm.rule.fp8_wait_s == pytest.approx(0.02)
    assert calm.rule == StepRule(fp8_wait_s=calm.rule.fp8_wait_s, fp8_budget_fraction=0.4)
    hot, _ = after(1.0, make_view(oldest_wait_s=1.0), current=AUTO, config=config)
    assert (hot.mode, hot.rule) == (FP8, StepRule())


@pytest.mark.parametrize(
    "parameters",
    [
        {"leave_fraction": 0.9},
        {"enter_strain": float("nan")},
        {"fp16_step_ratio": 0.5},
        {"slow_s": 0},
        {"max_miss_share": 0},
        {"calm_budget_fraction": 1.0},
        {"enter_afer_s": 1},
    ],
)
@pytest.mark.parametrize("config", [SloFeedback, SloAuto])
def test_bad_parameters_are_refused(config: type[SloFeedback], parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config.model_validate(parameters)
