"""Capacity from a closed loop, what limited it, and the rate and SLO that follow."""

import pytest
from loadtest_builders import CALIBRATION, failed, make_capacity, make_record

from loadtest.calibrate import (
    Stage,
    capacity,
    capacity_text,
    choose_rate_rps,
    choose_slo,
    saturated_by,
    unloaded_latency,
    user_stages,
)
from loadtest.config import LoadtestConfig
from loadtest.errors import LoadtestError
from loadtest.report.standing import stand
from loadtest.report.verdict import verdict
from workload.records import RequestRecord, TimelineSample
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
    found = capacity("fp16", records, [], (1,), stage_s=10.0, mean_output_tokens=10.0)
    assert found.carried_rps == pytest.approx(1.0, rel=0.02)
    assert (found.saturated_by, found.engine_rps) == ("users", None)  # nobody tried more users
    with pytest.raises(LoadtestError, match=r"no token came back in 1000 s .*--probe"):
        capacity("fp16", records, [], (1,), stage_s=1000.0, mean_output_tokens=10.0)


def test_users_double_up_to_the_most():
    assert user_stages(3) == (3,)
    assert user_stages(8) == (8,)
    assert user_stages(40) == (8, 16, 32, 40)


def closed_loop(stages: int, place: dict[str, int], grows: bool) -> tuple[list[RequestRecord], list[TimelineSample]]:
    """Stages of 10 s with 20 users each, whose requests of ten tokens take a second; all in one place of the service."""
    records, samples = [], []
    for second in range(10 * stages):
        users = 20 * (1 + second // 10) if grows else 20
        for user in range(users):
            chunk_ms = [100.0 * k for k in range(1, 11)]
            times = {"intended_s": float(second), "sent_s": float(second), "connected_s": second + 0.001}
            fields = {"max_tokens": 10, "output_tokens": 10, "chunk_ms": chunk_ms, "ttft_ms": 100.0, "latency_ms": 1e3}
            records.append(make_record(second * 1000 + user, **times, **fields))
        replica = {"id": "a", "mode": "fp16", **{k: v for k, v in place.items() if k != "in_path"}}
        replica["path"] = {"in_path": place.get("in_path", 0)}
        status = {"mode": "fp16", "epoch": 1, "replicas": [replica]}
        samples.append(TimelineSample.model_validate({"policy": "probe", "at_s": second + 0.5, "status": status}))
    return records, list(stand(records, samples))


@pytest.mark.parametrize(
    ("place", "grows", "limit"),
    [
        ({"running": 4, "waiting": 16}, False, "engine"),  # a standing queue in the engine
        ({"running": 20}, False, "engine"),  # all at once, and no faster with more: longer steps
        ({"running": 20}, True, "users"),  # still growing
        ({"running": 2, "in_path": 18}, False, "path"),
        ({"running": 2}, False, "path"),  # the others are on the way, in nobody's count
        ({"running": 2, "in_path": 18}, True, "path"),
    ],
)
def test_a_closed_loop_tells_what_kept_it_from_more(place, grows, limit):
    records, samples = closed_loop(2, place, grows)
    found = capacity("fp16", records, samples, (20, 40 if grows else 20), stage_s=10.0, mean_output_tokens=10.0)
    assert found.saturated_by == limit
    assert (found.engine_rps is None) == (limit != "engine")
    assert found.carried_rps == pytest.approx(40.0 if grows else 20.0, rel=0.02)


def test_a_refusal_ends_the_growth_and_other_failures_end_the_load_test():
    records, samples = closed_loop(1, {"running": 20}, False)
    refused = make_record(0, status=429, error="HTTP 429: too many", chunk_ms=(), output_tokens=0)
    assert capacity("fp16", [*records, refused], samples, (20,), 10.0, 10.0).saturated_by == "admission"
    broken = make_record(0, status=500, error="HTTP 500: oh", chunk_ms=(), output_tokens=0)
    with pytest.raises(LoadtestError, match="the first with: HTTP 500: oh"):
        capacity("fp16", [*records, broken], samples, (20,), 10.0, 10.0)


def test_without_a_status_the_limit_is_not_known():
    stages = [Stage(users=users, tokens_per_s=100.0, where={}) for users in (8, 16)]
    assert saturated_by(stages, "unknown") == "unknown"


def test_a_rate_that_the_path_limits_is_not_called_the_engines_capacity():
    found = make_capacity("fp16", 11.7, "path")
    assert "the PATH in front of the engine was the limit: this is not the engine's capacity" in capacity_text(found)
    fp8 = make_capacity("fp8", 11.8, "path")
    text = "\n".join(verdict([], CALIBRATION.model_copy(update={"capacities": (found, fp8)})))
    assert "Caution: calibration: fp16 carried 11.70 requests/s with 8 at once; the PATH" in text
    same = CALIBRATION.model_copy(update={"capacities": (make_capacity("fp16", 5.0), make_capacity("fp8", 5.1))})
    assert "same in both precisions" in "\n".join(verdict([], same))
    assert verdict([], CALIBRATION) == ()


def test_rate_and_slo_follow_the_calibration_unless_given():
    assert choose_rate_rps(make_config(load_fraction=0.5), CALIBRATION) == 1.0
    assert choose_rate_rps(make_config(duration_s=100.0, max_requests=10), CALIBRATION) == pytest.approx(0.1)
    assert choose_rate_rps(make_config(rate_rps=7.0), None) == 7.0
    assert choose_slo(make_config(), CALIBRATION) == Slo(ttft_ms=150.0, tpot_ms=20.0)
    assert choose_slo(make_config(slo_ttft_ms=1.0, slo_factor=10.0), CALIBRATION) == Slo(ttft_ms=1.0, tpot_ms=40.0)
    with pytest.raises(LoadtestError, match="--slo-tpot-ms"):
        choose_slo(make_config(), CALIBRATION.model_copy(update={"unloaded_tpot_ms": None}))
