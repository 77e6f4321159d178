"""The sliding window of latencies: any number of samples, percentiles to within 1 %, constant memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.messages import LatencyWindow
from controller.sliding_window import HIGHEST_MS, LOWEST_MS, SlidingWindow


@given(
    samples=st.lists(
        st.tuples(st.floats(0, 0.5), st.floats(LOWEST_MS, HIGHEST_MS), st.integers(1, 40)), min_size=1, max_size=200
    ),
    later_s=st.floats(0, 6),
)
def test_percentiles_are_those_of_the_samples_to_within_a_hundredth(
    samples: list[tuple[float, float, int]], later_s: float
) -> None:
    window, single, now_s = SlidingWindow(5.0), [], 0.0
    for pause_s, latency_ms, count in samples:
        now_s += pause_s
        window.add(now_s, latency_ms, count)
        single += [(now_s, latency_ms)] * count
    now_s += later_s
    summary = window.summary(now_s)
    # Whole slots are forgotten: a sample of the last 5.0 s counts in any case, one of more than 5.1 s ago in none.
    assert sum(at_s > now_s - 4.99 for at_s, _ in single) <= summary.count
    assert summary.count <= sum(at_s > now_s - 5.11 for at_s, _ in single)
    if summary.count:
        kept = sorted(latency_ms for _, latency_ms in single[-summary.count :])
        for share, got_ms in ((0.5, summary.p50_ms), (0.9, summary.p90_ms), (0.99, summary.p99_ms)):
            assert got_ms == pytest.approx(kept[round(share * (len(kept) - 1))], rel=0.0101)
        assert summary.p50_ms <= summary.p90_ms <= summary.p99_ms


@pytest.mark.parametrize("latency_ms", [0.0, LOWEST_MS / 2, 1e-9, HIGHEST_MS, 1e12])
def test_what_no_bucket_was_made_for_is_counted_at_the_ends(latency_ms: float) -> None:
    window = SlidingWindow()
    window.add(1.0, latency_ms)
    assert window.summary(1.0).p99_ms == latency_ms


def test_the_window_forgets_and_starts_anew() -> None:
    window = SlidingWindow(5.0)
    for i in range(10):
        window.add(float(i), 10.0 * i)
    assert (window.summary(9.0).count, window.summary(9.0).p50_ms) == (6, 60.0)  # nearest rank of 40, 50, ..., 90
    assert window.summary(100.0) == LatencyWindow()
    window.add(200.0, 7.0)
    assert window.summary(200.0) == LatencyWindow(count=1, p50_ms=7.0, p90_ms=7.0, p99_ms=7.0)
