"""The estimate of load and capacity, held against engines whose capacity is known."""

from dataclasses import replace

import pytest
from controller_builders import make_rates, make_view
from hypothesis import given
from hypothesis import strategies as st

from controller.fleet.view import Rates
from controller.policies.base import Observation
from controller.policies.signals import load
from nestedfp.modes import DirectiveMode, Mode
from workload.slo import Slo

SETTINGS = load.LoadSettings(max_utilisation=1.0)
BASE_MS, SLOPE_MS = {Mode.FP16: 6.0, Mode.FP8: 4.0}, {Mode.FP16: 0.03, Mode.FP8: 0.02}
TPOT_MS = 33.3


def busy_rates(tokens_per_s: float, mode: Mode) -> Rates:
    """Of an engine that is never idle: the batch grows until the step takes base / (1 - slope * load)."""
    step_ms = BASE_MS[mode] / (1 - SLOPE_MS[mode] * tokens_per_s / 1e3)
    fp16 = mode is Mode.FP16
    return make_rates(
        arrived_tokens_per_s=tokens_per_s / 1.25,
        tokens_fp16_per_s=tokens_per_s if fp16 else 0.0,
        tokens_fp8_per_s=0.0 if fp16 else tokens_per_s,
        steps_fp16_per_s=1e3 / step_ms if fp16 else 0.0,
        steps_fp8_per_s=0.0 if fp16 else 1e3 / step_ms,
    )


def watch(rates: list[Rates], mode: Mode = Mode.FP16, standing_tokens: int = 0, replicas: int = 1) -> load.LoadEstimate:
    state = load.LoadState()
    for i, now in enumerate(rates):
        step_ms = 1e3 / (now.steps_fp16_per_s + now.steps_fp8_per_s)
        views = [
            make_view(
                replica_id=f"r{k}",
                rates=now,
                mode=mode,
                standing_tokens=standing_tokens,
                step_ms_fp16=step_ms if mode is Mode.FP16 else None,
                step_ms_fp8=step_ms if mode is Mode.FP8 else None,
            )
            for k in range(replicas)
        ]
        seen = Observation(i / 10, tuple(views), DirectiveMode.FP16)
        estimate, state = load.update(seen, state, SETTINGS)
    return estimate


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("replicas", [1, 5])
def test_capacity_is_learned_from_step_times_without_an_overload(mode: Mode, replicas: int) -> None:
    loads = [8000.0 + 40.0 * (i % 100) for i in range(400)]
    estimate = watch([busy_rates(tokens, mode) for tokens in loads], mode, replicas=replicas)
    holds = (1 - BASE_MS[mode] / TPOT_MS) / SLOPE_MS[mode] * 1e3
    capacity = estimate.fp16_capacity if mode is Mode.FP16 else estimate.fp8_capacity
    assert capacity == pytest.approx(holds, rel=0.01)
    assert estimate.offered == pytest.approx(10000, rel=0.2)


def test_an_objective_that_no_step_can_meet_does_not_make_an_idle_replica_look_overloaded() -> None:
    tight, state = Slo(tpot_ms=BASE_MS[Mode.FP8] / 2), load.LoadState()
    loads = [8000.0 + 40.0 * (i % 100) for i in range(400)] + [0.0] * 600
    for i, tokens in enumerate(loads):
        idle = make_rates(arrived_tokens_per_s=0.0, tokens_fp8_per_s=0.0, steps_fp8_per_s=0.0)
        rates = busy_rates(tokens, Mode.FP8) if tokens else idle
        view = make_view(rates=rates, mode=Mode.FP8, step_ms_fp8=1e3 / rates.steps_fp8_per_s if tokens else 5.0)
        estimate, state = load.update(Observation(i / 10, (view,), DirectiveMode.FP8, tight), state, SETTINGS)
        if i == 399:
            assert estimate.fp8_load is not None
            assert estimate.fp8_load > 1, "under load it is overloaded: too many steps are too long"
    assert estimate.fp8_load == pytest.approx(0.0, abs=0.01)


def test_the_other_precision_is_taken_by_the_ratio() -> None:
    loads = [8000.0 + 40.0 * (i % 100) for i in range(400)]
    estimate = watch([busy_rates(tokens, Mode.FP16) for tokens in loads])
    assert estimate.fp16_capacity is not None
    assert estimate.fp8_capacity == pytest.approx(1.6 * estimate.fp16_capacity)
    assert estimate.fp8_load == pytest.approx(estimate.fp16_load / 1.6)  # type: ignore[operator]


def test_both_precisions_seen_give_the_ratio_of_their_steps() -> None:
    state = load.LoadState()
    for i in range(800):
        mode = Mode.FP16 if i < 400 else Mode.FP8
        rates = busy_rates(8000.0 + 40.0 * (i % 100), mode)
        step_ms = 1e3 / (rates.steps_fp16_per_s + rates.steps_fp8_per_s)
        view = make_view(rates=rates, mode=mode, step_ms_fp16=step_ms, step_ms_fp8=step_ms)
        estimate, state = load.update(Observation(i / 10, (view,)), state, SETTINGS)
    assert estimate.step_ratio == pytest.approx(1.5, rel=0.01)  # 6 / 4 and 0.03 / 0.02


def test_what_is_computed_while_a_queue_stands_is_the_capacity() -> None:
    estimate = watch([busy_rates(5000.0, Mode.FP16)] * 50, standing_tokens=100)
    assert estimate.fp16_capacity == pytest.approx(5000)  # constant steps tell no slope: the queue alone does
    assert estimate.fp16_load == pytest.approx(1.0)


def test_a_capacity_seen_long_ago_is_forgotten() -> None:
    state = load.LoadState()
    settings = load.LoadSettings(capacity_memory_s=30)
    capacities = []
    for now_s, standing in [(0.0, 100), (0.1, 100), (20.0, 0), (40.0, 0)]:
        view = make_view(rates=busy_rates(5000.0, Mode.FP16), standing_tokens=standing, step_ms_fp16=7.0)
        estimate, state = load.update(Observation(now_s, (view,)), state, settings)
        capacities.append(estimate.fp16_capacity)
    assert capacities[:3] == [pytest.approx(0.85 * 5000)] * 3
    assert capacities[3] is None


def test_nothing_is_known_before_anything_is_seen() -> None:
    estimate, _ = load.update(Observation(0.0, ()), load.LoadState(), SETTINGS)
    assert (estimate.fp16_load, estimate.fp8_load, estimate.offered) == (None, None, None)
    without, _ = load.update(Observation(0.0, (replace(make_view(), rates=None),)), load.LoadState(), SETTINGS)
    assert without == estimate


@pytest.mark.parametrize(
    ("tokens_per_s", "capacity", "expected"),
    [(None, 1.0, None), (1.0, None, None), (50.0, 100.0, 0.5), (1.0, 0.0, 99.0), (0.0, 0.0, 0.0), (1e9, 1.0, 99.0)],
)
def test_a_load_is_bounded(tokens_per_s: float | None, capacity: float | None, expected: float | None) -> None:
    assert load.over(tokens_per_s, capacity) == expected


@given(st.lists(st.floats(0.01, 2), min_size=2, max_size=20), st.floats(0, 1e6), st.floats(0, 1e6))
def test_smoothing_knows_no_steps_only_time(pauses_s: list[float], start: float, value: float) -> None:
    smoothed = start
    for pause_s in pauses_s:
        smoothed = load.ewma(smoothed, value, pause_s, 5.0)
    assert smoothed == pytest.approx(load.ewma(start, value, sum(pauses_s), 5.0), abs=1e-6)
