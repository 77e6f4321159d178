"""Arrivals and figures of the open-loop engine benchmark.

Run: ``pytest -q tests/test_engine_mixed.py``
"""

import itertools
import statistics

import pytest

from benchmarks.engine_mixed import Answer, arrivals, figures_ms, percentile


def test_arrivals_depend_on_the_seed_alone_and_come_at_the_rate():
    times_s = arrivals(3, 20.0, 200.0)
    assert times_s == arrivals(3, 20.0, 200.0) != arrivals(4, 20.0, 200.0)
    assert times_s == sorted(times_s)
    assert 0 < times_s[0] < times_s[-1] < 200
    assert len(times_s) == pytest.approx(4000, rel=0.05)
    gaps = [b - a for a, b in itertools.pairwise(times_s)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.1), "a Poisson process"


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_a_rate_or_duration_of_nothing_is_refused(rate, seconds):
    with pytest.raises(ValueError, match="above zero"):
        arrivals(1, rate, seconds)


def test_percentiles_are_values_that_occurred():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile([5.0], 0.99) == 5.0


def test_figures_count_the_middle_of_the_run_and_waiting_before_the_first_step():
    steady = [Answer(float(s), s + 0.2, s + 0.2 + 0.03 * 87, 88) for s in range(20, 80)]
    edges = [Answer(0.0, 50.0, 99.0, 88), Answer(95.0, 150.0, 199.0, 88)]
    ttft_p50, ttft_p99, tpot_p50, tpot_p99 = figures_ms([*steady, *edges], 100.0)
    assert (ttft_p50, ttft_p99) == pytest.approx((200.0, 200.0))
    assert (tpot_p50, tpot_p99) == pytest.approx((30.0, 30.0))
    with pytest.raises(ValueError, match="none of 2 requests"):
        figures_ms(edges, 100.0)
