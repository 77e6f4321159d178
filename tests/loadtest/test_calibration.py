"""Capacity from a closed loop, and the rate and SLO that follow."""

import pytest
from loadtest_builders import CALIBRATION, failed, make_record

from loadtest.calibrate import capacity, choose_rate_rps, choose_slo, unloaded_latency, user_stages
from loadtest.config import LoadtestConfig
from loadtest.errors import LoadtestError
from workload.slo import Slo


def make_config(**overrides: object) -> LoadtestConfig:
    return LoadtestConfig.model_validate({"url": "http://127.0.0.1:1"} | overrides)


def test_the_first_unloaded_request_only_warms_up():
    records = [
        make_record(i, ttft_ms=t, tpot_ms=p) for i, (t, p) in enumerate([(900.0, 90.0), (30.0, 4.0), (32.0, 6.0)])
    ]
    assert unloaded_latency(records) == (31.0, 5.0, 2)
    assert unloaded_latency(records[:1]) == (900.0, 90.0, 1)
    with pytest.raises(LoadtestError, match="no token came back"):
        unloaded_latency([failed(0).model_copy(update={"error": "cut at the end of the run"})])
    with pytest.raises(LoadtestError, match="1 of 1 requests failed, the first with: not sent"):
        unloaded_latency([failed(0)])


def test_capacity_counts_tokens_after_the_start_up():
    # A token every 100 ms from 0 to 10 s, in requests of 10 tokens: one request a second.
    records = [
        make_record(i, intended_s=float(i), max_tokens=10, output_tokens=10, chunk_ms=[100.0 * k for k in range(10)])
        for i in range(9)
    ]
    cut = {"error": "cut at the end of the run", "output_tokens": 10}
    records.append(make_record(9, max_tokens=99, chunk_ms=[100.0 * k for k in range(10)], **cut))
    found = capacity("fp16", records, (1,), stage_s=10.0, mean_output_tokens=10.0)
    assert found.carried_rps == pytest.approx(1.0, rel=0.02)
    with pytest.raises(LoadtestError, match=r"no token came back in 1000 s .*--probe"):
        capacity("fp16", records, (1,), stage_s=1000.0, mean_output_tokens=10.0)


def test_users_double_up_to_the_most():
    assert user_stages(3) == (3,)
    assert user_stages(8) == (8,)
    assert user_stages(40) == (8, 16, 32, 40)


def test_refusals_are_borne_and_other_failures_end_the_load_test():
    records = [make_record(i, max_tokens=10, output_tokens=10, chunk_ms=[50.0] * 10) for i in range(9)]
    refused = make_record(0, status=429, error="HTTP 429: too many", chunk_ms=(), output_tokens=0)
    assert capacity("fp16", [*records, refused], (20,), 10.0, 10.0).carried_rps > 0
    broken = make_record(0, status=500, error="HTTP 500: oh", chunk_ms=(), output_tokens=0)
    with pytest.raises(LoadtestError, match="the first with: HTTP 500: oh"):
        capacity("fp16", [*records, broken], (20,), 10.0, 10.0)


def test_rate_and_slo_follow_the_calibration_unless_given():
    assert choose_rate_rps(make_config(load_fraction=0.5), CALIBRATION) == 1.0
    assert choose_rate_rps(make_config(duration_s=100.0, max_requests=10), CALIBRATION) == pytest.approx(0.1)
    assert choose_rate_rps(make_config(rate_rps=7.0), None) == 7.0
    assert choose_slo(make_config(), CALIBRATION) == Slo(ttft_ms=150.0, tpot_ms=20.0)
    assert choose_slo(make_config(slo_ttft_ms=1.0, slo_factor=10.0), CALIBRATION) == Slo(ttft_ms=1.0, tpot_ms=40.0)
    with pytest.raises(LoadtestError, match="--slo-tpot-ms"):
        choose_slo(make_config(), CALIBRATION.model_copy(update={"unloaded_tpot_ms": None}))
