"""When steps end by a device's clock, for a host that looks late.

Run: ``pytest -q tests/plugin/test_device_clock.py``
"""

import random

import pytest

from nestedfp.steps.device_clock import DeviceClock


def test_without_a_device_a_step_ends_when_the_host_looks():
    clock = DeviceClock()
    assert [clock.ended_s(now_s, None) for now_s in (5.0, 5.5, 9.0)] == [5.0, 5.5, 9.0]


def test_a_late_look_is_not_charged_to_the_step():
    clock = DeviceClock()
    clock.ended_s(100.0, None)
    assert clock.ended_s(100.020, 0.020) == pytest.approx(100.020)
    # Decodes: over after 9 ms, but the host was launching a step of prompts for 15.
    assert clock.ended_s(100.035, 0.009) == pytest.approx(100.029, abs=1e-5)
    assert clock.ended_s(100.059, 0.030) == pytest.approx(100.059, abs=1e-5)


def test_a_first_look_that_was_late_is_forgotten_with_the_first_that_was_not():
    clock = DeviceClock()
    clock.ended_s(100.050, None)  # it ended at 100.0
    assert clock.ended_s(100.020, 0.020) == pytest.approx(100.020)


@pytest.mark.parametrize("drift", [-5e-5, 0.0, 5e-5])
def test_clocks_may_drift_apart_for_a_day(drift):
    rng, clock, ended_s = random.Random(1), DeviceClock(), 1000.0
    clock.ended_s(ended_s, None)
    worst_s = 0.0
    for step in range(20_000):
        took_s = rng.uniform(2.0, 6.0) if step < 19_000 else rng.uniform(0.005, 0.040)
        ended_s += took_s
        late_s = rng.choice((0.0, 0.0, 0.0, 0.008, 0.015))
        said_s = clock.ended_s(ended_s + late_s, took_s * (1 + drift))
        assert said_s <= ended_s + late_s
        worst_s = max(worst_s, abs(said_s - ended_s)) if step > 19_000 else 0.0
    assert worst_s < 0.001


def test_a_pause_between_two_steps_is_time_like_any_other():
    clock = DeviceClock()
    clock.ended_s(10.0, None)
    clock.ended_s(10.020, 0.020)
    assert clock.ended_s(3610.020, 3600.0) == pytest.approx(3610.020, abs=1e-6)
    assert clock.ended_s(3610.060, 0.020) == pytest.approx(3610.040, abs=1e-4)
