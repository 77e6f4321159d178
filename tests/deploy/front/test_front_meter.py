"""What the path's meter makes of a request: times from arrival to the bytes written, and who counts in them."""

from types import SimpleNamespace

import pytest
from vllm.v1.metrics.stats import RequestStateStats

from deploy.front.context import PAUSED_AFTER_S, PathMeter
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts


@pytest.fixture
def meter(clock):
    return PathMeter(clock)


def write(passage, clock, tokens=1, takes_s=0.0):
    passage.writing()
    clock.now_s += takes_s
    passage.wrote(tokens)


def test_times_count_from_the_arrival_to_the_bytes_written(meter, clock):
    passage = meter.arrive(clock.now_s)
    assert meter.stats(clock.now_s).in_path == 1
    clock.now_s += 0.02
    passage.submitted()
    assert (meter.stats(clock.now_s).in_path, meter.stats(clock.now_s).open_streams) == (0, 1)
    clock.now_s += 0.08
    write(passage, clock)
    for tokens in (1, 3):  # three that came at once took as long as one
        clock.now_s += 0.03
        write(passage, clock, tokens)
    passage.finished()
    passage.meter.left(passage)
    ttft, tpot = meter.windows(clock.now_s)
    assert (ttft.count, ttft.p50_ms) == (1, pytest.approx(100, rel=0.02))
    assert (tpot.count, tpot.p90_ms) == (2, pytest.approx(30, rel=0.02))
    assert meter.stats(clock.now_s).wait_p90_ms == pytest.approx(20, rel=0.02)
    assert (meter.slo_evaluated, meter.within_slo) == (1, 1), "100 ms, and 60 ms over four tokens"
    assert meter.stats(clock.now_s).open_streams == 0


def test_a_client_that_does_not_read_is_seen_and_says_nothing_about_the_service(meter, clock):
    passage = meter.arrive(clock.now_s)
    passage.submitted()
    write(passage, clock)
    passage.writing()
    clock.now_s += PAUSED_AFTER_S + 0.5
    assert meter.stats(clock.now_s).paused_streams == 1
    passage.wrote(1)
    assert meter.stats(clock.now_s).paused_streams == 0
    passage.finished()
    assert meter.windows(clock.now_s)[1].count == 0
    assert meter.slo_evaluated == 0


def test_an_answer_in_one_piece_has_the_engines_times_and_the_wait_before_it(meter, clock):
    passage = meter.arrive(clock.now_s)
    clock.now_s += 0.05
    passage.submitted()
    clock.now_s += 3.0
    metrics = RequestStateStats(
        num_generation_tokens=10, first_token_latency=0.15, first_token_ts=1.0, last_token_ts=1.9
    )
    passage.finished_outputs.append(SimpleNamespace(metrics=metrics))
    passage.observe()
    ttft, tpot = meter.windows(clock.now_s)
    assert (ttft.p50_ms, tpot.p50_ms) == (pytest.approx(200, rel=0.02), pytest.approx(100, rel=0.02))
    assert (meter.slo_evaluated, meter.within_slo) == (1, 0)


def test_the_way_back_from_the_engine_is_not_known_before_something_went_it(meter, clock):
    assert meter.stats(clock.now_s).delivery_p90_ms is None
    for took_s in (0.004, 0.02, -0.001):
        meter.delivered(took_s)
    assert meter.stats(clock.now_s).delivery_p90_ms == pytest.approx(20, rel=0.02)
    assert meter.stats(clock.now_s + 60).delivery_p90_ms is None


def test_the_largest_lag_of_the_last_second_counts(meter, clock):
    for lag_s in (0.004, 0.2, 0.001):
        meter.lag(lag_s)
    assert meter.stats(clock.now_s).loop_lag_ms == pytest.approx(200)
    assert meter.stats(clock.now_s + 1.5).loop_lag_ms == 0


def test_the_engines_account_counts_where_it_says_more_than_the_front_has_seen(meter, clock):
    passage = meter.arrive(clock.now_s)
    passage.prompt_tokens, passage.completion_tokens = 30, 4
    assert passage.used_tokens == 34
    passage.counts.update(a=TokenCounts(prompt_fp16=30, completion_fp8=5), b=TokenCounts(cached_fp16=30))
    assert passage.used_tokens == 65
