"""How busy the sender says it is. Run: python -m pytest tests/loadtest/test_gauge.py"""

from types import SimpleNamespace

import pytest

from loadtest.sender import gauge
from loadtest.sender.gauge import Gauge


@pytest.fixture
def clocks(monkeypatch):
    """The clocks of a process: set ``cpu`` and ``wall``, s."""
    now = {"cpu": 5.0, "wall": 100.0}
    clock = SimpleNamespace(process_time=lambda: now["cpu"], perf_counter=lambda: now["wall"])
    monkeypatch.setattr(gauge, "time", clock)
    return now


def test_the_share_is_of_the_time_since_the_last_word(clocks):
    busy = Gauge()
    clocks.update(cpu=5.2, wall=100.5)
    assert busy.take() == {"cpu_s": pytest.approx(0.2), "cpu_share": pytest.approx(0.4), "lag_ms": 0}
    clocks.update(cpu=5.6, wall=101.0)
    assert busy.take() == {"cpu_s": pytest.approx(0.6), "cpu_share": pytest.approx(0.8), "lag_ms": 0}


def test_a_moment_between_two_words_is_no_share(clocks):
    """The first word comes as soon as the gauge is there, the last one at once behind another: clock noise is no load."""
    busy = Gauge()
    clocks.update(cpu=5.0003, wall=100.0001)
    assert busy.take()["cpu_share"] == 0
    clocks.update(cpu=5.2, wall=100.5)
    assert busy.take()["cpu_share"] == pytest.approx(0.4)
    clocks.update(cpu=5.21, wall=100.501)
    assert busy.take() == {"cpu_s": pytest.approx(0.21), "cpu_share": pytest.approx(0.4), "lag_ms": 0}
    clocks.update(cpu=5.4, wall=101.0)
    assert busy.take()["cpu_share"] == pytest.approx(0.4)  # the moment's 10 ms are in the span that follows


def test_the_lag_is_the_largest_since_the_last_word(clocks):
    busy = Gauge()
    for lag_s in (0.001, 0.02, 0.003):
        busy.late(lag_s)
    assert busy.take()["lag_ms"] == pytest.approx(20)
    assert busy.take()["lag_ms"] == 0
