"""What a step is predicted to take, and where FP8 is worth its rounding."""

import pytest

from nestedfp.modes import Mode
from nestedfp.steps.step_costs import StepCost, StepCosts
from nestedfp.steps.step_times import StepTimes

COSTS = StepCosts((StepCost(1, 10.0, 6.0), StepCost(100, 20.0, 12.0)))


def test_a_prediction_learns_what_attention_adds_in_either_precision() -> None:
    times = StepTimes(COSTS)
    assert times.predicted_s(Mode.FP16, 100, with_prompts=False) == pytest.approx(0.020)
    for _ in range(50):
        times.took(Mode.FP8, 100, 0.017, with_prompts=False)  # 12 ms measured at the start
    assert times.predicted_s(Mode.FP8, 100, with_prompts=False) == pytest.approx(0.017, rel=1e-3)
    assert times.predicted_s(Mode.FP16, 100, with_prompts=False) == pytest.approx(0.025, rel=1e-3)
    assert times.predicted_s(Mode.FP16, 100, with_prompts=True) == pytest.approx(0.020)


def test_a_stall_teaches_little_and_steps_that_stay_slow_all_they_take() -> None:
    times = StepTimes(COSTS)
    for took_s in [1.0] + [0.012] * 10:
        times.took(Mode.FP8, 100, took_s, with_prompts=True)
        assert times.predicted_s(Mode.FP8, 100, with_prompts=True) < 0.018
    for _ in range(50):
        times.took(Mode.FP8, 100, 0.120, with_prompts=True)
    assert times.predicted_s(Mode.FP8, 100, with_prompts=True) == pytest.approx(0.120, rel=1e-2)


def test_without_costs_each_precision_learns_for_itself() -> None:
    times = StepTimes(None)
    for _ in range(50):
        times.took(Mode.FP16, 100, 0.030, with_prompts=True)
    assert times.predicted_s(Mode.FP16, 7, with_prompts=True) == pytest.approx(0.030, rel=1e-3)
    assert times.predicted_s(Mode.FP8, 7, with_prompts=True) == 0.0, "an FP8 step is tried"
    assert times.classes_pay(0, 100, with_prompts=True)


def test_fast_rows_run_fp16_where_fp8_saves_nothing() -> None:
    even = StepTimes(StepCosts((StepCost(1, 10.0, 10.0), StepCost(100, 20.0, 12.0))))
    assert not even.classes_pay(0, 1, with_prompts=False)
    assert even.classes_pay(0, 100, with_prompts=True)
    assert not even.classes_pay(100, 0, with_prompts=True)
    assert not even.classes_pay(50, 50, with_prompts=True), "no step of both kinds"
