"""predictive: Holt's method against known series, the forecast load, and the warm start from a trace."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from controller_builders import make_rates, make_view
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from controller.config import ControllerConfig
from controller.policies import predictive
from controller.policies.base import Decision, Observation
from controller.policies.predictive import Holt, Predictive, WarmStart
from nestedfp.modes import DirectiveMode, Mode
from simulator.search import warm_start
from workload.azure import Arrival

FP16, FP8 = DirectiveMode.FP16, DirectiveMode.FP8
KNOWN = WarmStart(prompt_tokens_per_s=1000, fp16_capacity_tokens_per_s=10_000)


@given(st.lists(st.floats(0.05, 2), min_size=60, max_size=80), st.floats(0, 1e5), st.floats(0, 1e3))
def test_holt_follows_a_straight_line_sampled_at_any_times(pauses_s: list[float], level: float, trend: float) -> None:
    at_s, holt = 0.0, Holt(level, trend)
    for pause_s in pauses_s:
        at_s += pause_s
        holt = holt.seen(level + trend * at_s, pause_s, 5.0, 20.0)
    assert holt.ahead(3.0) == pytest.approx(level + trend * (at_s + 3.0), rel=1e-6, abs=1e-6)
    assert holt.variance == pytest.approx(0, abs=1e-6 * (1 + level + trend * at_s) ** 2)


def test_holt_finds_a_trend_it_did_not_know() -> None:
    holt = Holt()
    for i in range(600):
        holt = holt.seen(100.0 + 5.0 * i * 0.1, 0.1, 2.0, 5.0)
    assert holt.trend == pytest.approx(5.0, rel=0.05)
    assert holt.ahead(4.0) == pytest.approx(100 + 5 * 63.9, rel=0.02)


def test_a_forecast_is_never_negative_and_a_sample_at_the_same_time_changes_nothing() -> None:
    holt = Holt(10.0, -100.0)
    assert holt.ahead(5.0) == 0.0
    assert holt.seen(99.0, 0.0, 1.0, 1.0) == holt
    assert Holt().ahead(1.0) is None


def play(config: Predictive, arriving: list[float], current: DirectiveMode = FP16, **snapshot: Any) -> list[Decision]:
    """Decisions for prompt tokens arriving per second, ten times a second; nothing waits and steps are short."""
    _, state = predictive.start(config)
    decisions = []
    for i, tokens in enumerate(arriving):
        mode = Mode(current.value)
        rates = make_rates(
            arrived_tokens_per_s=tokens,
            tokens_fp16_per_s=tokens if mode is Mode.FP16 else 0.0,
            tokens_fp8_per_s=tokens if mode is Mode.FP8 else 0.0,
        )
        view = make_view(**{"mode": mode, "step_ms_fp16": 10.0, "step_ms_fp8": 7.0, **snapshot}, rates=rates)
        decision, state = predictive.decide(Observation(i / 10, (view,), current), state, config)
        current = decision.mode
        decisions.append(decision)
    return decisions


def test_a_rising_load_enters_fp8_before_it_reaches_the_capacity() -> None:
    ramp = [1000.0] * 100 + [1000.0 + 20.0 * i for i in range(500)]
    config = Predictive(warm_start=KNOWN, enter_load=1.0, margin=0.0, level_s=2.0, trend_s=4.0)
    decisions = play(config, ramp)
    entered = next(i for i, decision in enumerate(decisions) if decision.mode is FP8)
    assert decisions[entered].reason == "forecast_over_capacity"
    assert 10_000 - 3.3 * 200 < ramp[entered] < 10_000 - 1.5 * 200  # about 3 s ahead at 200 tokens/s a second
    assert all(decision.mode is FP8 for decision in decisions[entered:])


def test_fp8_is_left_below_the_leave_load_only() -> None:
    config = Predictive(warm_start=KNOWN.model_copy(update={"prompt_tokens_per_s": 7500.0}), margin=0.0)
    held = play(config, [7500.0] * 600, current=FP8)
    assert {decision.reason for decision in held} == {"forecast_over_leave"}
    left = play(config, [6000.0] * 600, current=FP8)
    assert "fp16_would_hold_slo" in {decision.reason for decision in left}
    assert left[-1].reason == "forecast_within_capacity"


def test_what_no_forecast_sees_enters_by_danger() -> None:
    decisions = play(Predictive(), [1000.0] * 30, oldest_wait_s=1.0)
    entered = next(decision for decision in decisions if decision.mode is FP8)
    assert entered.reason == "predicted_ttft_over_enter"
    assert decisions[-1].mode is FP8


def test_without_a_capacity_there_is_no_forecast_load() -> None:
    decisions = play(Predictive(), [1e6] * 30)
    assert (decisions[-1].mode, decisions[-1].reason) == (FP16, "forecast_within_capacity")
    assert "forecast_load" not in dict(decisions[-1].inputs)


@pytest.mark.parametrize(
    "parameters",
    [
        {"leave_load": 0.8},
        {"level_s": 0},
        {"forecast_s": float("nan")},
        {"forecst_s": 1},
        {"warm_start": {"prompt_tokens_per_s": -1}},
        {"warm_start": {}},
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Predictive.model_validate(parameters)


def test_rates_of_a_trace_are_those_of_the_last_second() -> None:
    arrivals = [Arrival(0.0, 10, 1), Arrival(0.9, 20, 1), Arrival(2.2, 40, 1), Arrival(4.0, 80, 1)]
    # samples at 1.0, 1.5, 2.0, 2.5, 3.0, 3.5; a sample covers the second before it
    assert warm_start.rates(arrivals, 2).tolist() == [10, 10, 0, 20, 20, 0]


@pytest.mark.slow
def test_the_fit_prefers_a_fast_level_for_a_random_walk_and_a_slow_one_for_noise() -> None:
    random = np.random.default_rng(0)
    noise = 1000 + 100 * random.standard_normal(2000)
    walk = 1000 + np.cumsum(30 * random.standard_normal(2000))
    assert warm_start.fit(noise, 3.0).level_s > warm_start.fit(walk, 3.0).level_s


def test_the_command_prints_a_section_that_the_controller_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:{i // 60:02}:{i % 60:02}.0,{100 + i % 7},50" for i in range(120)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    assert warm_start.main(["--trace", str(trace), "--replicas", "2"]) == 0
    config = ControllerConfig.model_validate(yaml.safe_load(capsys.readouterr().out)["controller"])
    assert isinstance(config.policy, Predictive)
    assert config.policy.warm_start is not None
    assert config.policy.warm_start.prompt_tokens_per_s == pytest.approx(51.5, rel=0.1)
    assert config.policy.warm_start.tokens_per_prompt_token == pytest.approx(1.485, rel=0.01)


@pytest.mark.parametrize(
    ("text", "said"),
    [("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,5,5\n", "at least 10 s"), (None, "cannot read")],
)
def test_a_trace_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    trace = tmp_path / "trace.csv"
    if text is not None:
        trace.write_text(text)
    assert warm_start.main(["--trace", str(trace)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
