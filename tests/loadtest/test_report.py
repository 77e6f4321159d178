"""Metrics, calibration, verdict and report on made-up records. Run: python -m pytest tests/loadtest/test_report.py"""

import json
from html.parser import HTMLParser

import pytest
from rich.console import Console

from controller.audit import ReplicaStatus as ControllerReplica
from controller.audit import StatusReport
from controller.messages import PathStats, ProxyStats
from loadtest.calibrate import (
    Calibration,
    Capacity,
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
from loadtest.report.metrics import counter_growth, fp16_token_share, summarise
from loadtest.report.plots import fp8_shares
from loadtest.report.standing import limited_by, path_summary, stand
from loadtest.report.verdict import verdict
from loadtest.report.write import LoadSummary, Summary, print_report, render_html, write_report
from nestedfp.step_rule import StepRule
from workload.percentiles import percentiles
from workload.records import RequestRecord, ServiceStatus, TimelineSample, read_requests, write_jsonl
from workload.slo import Slo

SLO = Slo(ttft_ms=100.0, tpot_ms=20.0)


def make_record(index: int = 0, **overrides: object) -> RequestRecord:
    fields = {
        "policy": "adaptive",
        "index": index,
        "intended_s": float(index),
        "sent_s": index + 0.002,
        "prompt_tokens": 10,
        "max_tokens": 3,
        "output_tokens": 3,
        "status": 200,
        "ttft_ms": 50.0,
        "tpot_ms": 10.0,
        "latency_ms": 70.0,
        "chunk_ms": (50.0, 60.0, 70.0),
        "precision_tokens": {
            "prompt": {"fp16": 6, "fp8": 0, "cached": {"fp16": 4}},
            "completion": {"fp16": 1, "fp8": 2},
        },
        "model": "m",
    }
    return RequestRecord.model_validate(fields | overrides)


def failed(index: int) -> RequestRecord:
    nothing = {"ttft_ms": None, "tpot_ms": None, "latency_ms": None, "chunk_ms": (), "precision_tokens": None}
    return make_record(index, sent_s=None, status=None, output_tokens=0, error="not sent", **nothing)


def make_sample(at_s: float, *replicas: tuple[str, int, int, int], waiting: int = 0) -> TimelineSample:
    """Replicas as (id, switches, tokens_fp16, tokens_fp8)."""
    states = [
        {"id": i, "mode": "fp16", "switches": s, "tokens_fp16": a, "tokens_fp8": b, "waiting": waiting}
        for i, s, a, b in replicas
    ]
    status = {"mode": "auto", "epoch": 1, "reason": "r", "replicas": states, "unknown_field": 5}
    return TimelineSample.model_validate({"policy": "adaptive", "at_s": at_s, "status": status})


def test_percentiles_interpolate_and_nothing_gives_none():
    values = percentiles(float(v) for v in range(101))
    assert (values.p50, values.p90, values.p99) == (50.0, 90.0, 99.0)
    assert percentiles([1.0, 2.0]).p90 == pytest.approx(1.9)
    assert percentiles([]).p50 is None


def test_a_run_is_summarised_as_by_hand():
    records = [
        make_record(0),
        make_record(1, ttft_ms=101.0),  # misses TTFT
        make_record(2, tpot_ms=21.0),  # misses TPOT
        make_record(3, tpot_ms=None, max_tokens=1, output_tokens=1, chunk_ms=(50.0,)),  # one token: no TPOT to miss
        make_record(4, error="HTTP 500", status=500),  # fast, but failed
        failed(5),
    ]
    samples = [make_sample(0.0, ("a", 3, 100, 10)), make_sample(9.0, ("a", 8, 150, 60), waiting=7)]
    run = summarise(records, samples, SLO, duration_s=10.0)
    assert (run.requests, run.errors) == (6, 2)
    assert run.error_kinds == {"HTTP 500": 1, "not sent": 1}
    assert run.slo_attainment == pytest.approx(2 / 6)
    assert run.ttft_attainment == pytest.approx(3 / 6)
    assert run.tpot_attainment == pytest.approx(3 / 6)
    assert run.goodput_rps == pytest.approx(0.2)
    assert run.rate_rps == pytest.approx(0.6)
    assert run.ttft_ms.p50 == 50.0
    assert run.ttft_ms.p99 == pytest.approx(50 + 0.96 * 51)  # five values, the largest 101
    assert run.itl_ms.p50 == 10.0
    assert run.dispatch_lag_ms.p99 == pytest.approx(2.0)
    assert run.fp16_token_share == pytest.approx(7 / 9)  # cached tokens were not computed
    assert run.fp16_token_share_from == "responses"
    assert (run.switches, run.max_waiting) == (5, 7)
    assert run.output_tokens_per_s == pytest.approx(13 / 10)


def test_precision_comes_from_status_when_responses_are_silent():
    samples = [make_sample(0.0, ("a", 0, 100, 10)), make_sample(9.0, ("a", 0, 130, 20))]
    run = summarise([make_record(precision_tokens=None)], samples, SLO, 10.0)
    assert (run.fp16_token_share, run.fp16_token_share_from) == (0.75, "status")
    run = summarise([make_record(precision_tokens=None)], [], SLO, 10.0)
    assert (run.fp16_token_share, run.fp16_token_share_from, run.switches) == (None, "none", None)
    assert fp16_token_share([]) is None


def test_counters_survive_a_restart_and_a_new_replica():
    samples = [
        make_sample(0.0, ("a", 5, 0, 0)),
        make_sample(1.0, ("a", 7, 0, 0), ("b", 100, 0, 0)),  # b was there before we looked
        make_sample(2.0, ("a", 1, 0, 0), ("b", 101, 0, 0)),  # a restarted
    ]
    assert counter_growth(samples, "switches") == 2 + 1 + 1
    assert counter_growth(samples[:1], "switches") == 0


def test_the_fp8_share_over_time_is_empty_where_nothing_ran():
    samples = [make_sample(0.0, ("a", 0, 0, 0)), make_sample(2.0, ("a", 0, 10, 30)), make_sample(4.0, ("a", 0, 10, 30))]
    times_s, shares = fp8_shares(samples)
    assert times_s == [1.0, 3.0]
    assert shares[0] == 0.75
    assert shares[1] != shares[1]  # NaN


def make_config(**overrides: object) -> LoadtestConfig:
    return LoadtestConfig.model_validate({"url": "http://127.0.0.1:1"} | overrides)


def make_capacity(mode: str, rate_rps: float, limit: str = "engine") -> Capacity:
    stages = (Stage(users=8, tokens_per_s=10 * rate_rps, where={}),)
    return Capacity(mode=mode, carried_rps=rate_rps, users=8, saturated_by=limit, stages=stages)


CALIBRATION = Calibration(
    probe_s=10.0,
    mean_prompt_tokens=100.0,
    mean_output_tokens=10.0,
    unloaded_requests=3,
    unloaded_ttft_ms=30.0,
    unloaded_tpot_ms=4.0,
    capacities=(make_capacity("fp16", 2.0), make_capacity("fp8", 3.0)),
)


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


def make_run(policy: str, met: int, count: int = 1000, **overrides: object):
    records = [
        make_record(i, policy=policy, ttft_ms=50.0 if i < met else 500.0, precision_tokens=None) for i in range(count)
    ]
    return summarise(records, [], SLO, 100.0).model_copy(update=overrides)


@pytest.mark.parametrize(
    ("adaptive", "fp16", "says"),
    [
        (980, 800, "Adaptive meets the SLO (98.0 % of requests) where FP16 only misses it (80.0 %)."),
        (
            900,
            800,
            "Adaptive keeps 90.0 % of requests within the SLO, FP16 only 80.0 %; the target of 95.0 % is met by n",
        ),
        (1000, 960, "the target of 95.0 % is met by both."),
        (805, 800, "Not shown: adaptive 80.5 % and FP16 only 80.0 % of requests within the SLO do not differ."),
        (999, 998, "do not differ; the load was too low to tell them apart."),
        (700, 800, "Not shown: adaptive is worse, 70.0 % of requests within the SLO against 80.0 % for FP16 only."),
    ],
)
def test_the_verdict_says_only_what_the_numbers_show(adaptive, fp16, says):
    lines = verdict([make_run("fp16", fp16), make_run("adaptive", adaptive)])
    assert says in lines[0]
    assert not any("Caution" in line for line in lines)


def test_the_verdict_weighs_adaptive_against_fp8_and_warns():
    runs = [make_run("fp16", 500), make_run("fp8", 990), make_run("adaptive", 985, fp16_token_share=0.681)]
    text = "\n".join(verdict(runs))
    assert (
        "Adaptive ran 68.1 % of its tokens in exact FP16 and kept as many requests within the SLO as FP8 only" in text
    )
    assert "FP8 only keeps more requests within the SLO than FP16 only (99.0 % against 50.0 %)" in text
    few = make_run("fp16", 10, count=20, fp16_token_share=0.9, errors=2)
    text = "\n".join(verdict([few]))
    assert "2 of 20 requests failed" in text
    assert "only 20 requests" in text
    assert "90.0 % of the tokens ran in FP16" in text
    assert verdict([]) == ()


def test_late_requests_make_a_run_invalid_and_a_few_are_said():
    late = [make_record(i, sent_s=i + (0.08 if i < 30 else 0.001), connected_s=i + 0.1) for i in range(1000)]
    run = summarise(late, [], SLO, 1000.0)
    assert (run.late_starts, run.valid, run.saturated_by) == (30, False, "client")
    assert "30 of 1000 requests left more than 50 ms late" in "\n".join(verdict([run]))
    run = summarise(late[25:], [], SLO, 1000.0)
    assert (run.late_starts, run.valid, run.invalid_because) == (5, True, None)
    assert "the client was busy: 5 requests left more than 50 ms late" in "\n".join(verdict([run]))


def sample_at(at_s: float, service: dict[str, object] | None, sender: dict[str, float] | None = None) -> TimelineSample:
    """One replica, or a server without a status."""
    status = None
    if service is not None:
        known = {"id": "a", "mode": "fp16"} | {k: v for k, v in service.items() if k in ("running", "waiting", "path")}
        rest = {k: v for k, v in service.items() if k in ("proxy", "path_saturated")}
        status = {"mode": "auto", "epoch": 1, "replicas": [known], **rest}
    fields = {"policy": "adaptive", "at_s": at_s, "status": status, "sender": sender}
    return TimelineSample.model_validate(fields)


def test_what_the_controller_says_of_path_and_proxy_is_read():
    replica = ControllerReplica(
        id="a", mode="fp8", epoch=7, directive="fp8", acked=True, ready=True, stale=False, age_s=0.1, directed="fp8",
        lease_remaining_s=1.0, running=3, waiting=2, waiting_tokens=9, oldest_wait_s=0.1, kv_usage=0.5, tokens_fp16=11,
        tokens_fp8=12, steps_fp16=1, steps_fp8=1, arrivals=5, arrived_tokens=9, finished=0, switches=5,
        ttft_p90_ms=None, tpot_p90_ms=None, arrivals_per_s=None, tokens_per_s=None,
        path=PathStats(in_path=4, wait_p90_ms=60.0, loop_lag_ms=70.0, open_streams=9, paused_streams=1),
    )  # fmt: skip
    report = StatusReport(
        mode="fp8", epoch=7, reason="r", last_reason="r", policy="p", since_s=1.0, rule=StepRule(), override=None,
        path_saturated=True, proxy=ProxyStats(sessions=9, queued=6), replicas=(replica, replica.model_copy(update={"path": None})),
    )  # fmt: skip
    status = ServiceStatus.model_validate(report.model_dump(mode="json"))
    assert (status.in_path, status.waiting, status.running, status.proxy.queued) == (4, 4, 6, 6)
    assert status.path_saturated
    summary = path_summary([TimelineSample(policy="fp8", at_s=1.0, status=status)])
    assert (summary.wait_ms, summary.loop_lag_ms, summary.paused_streams, summary.saturated_share) == (
        60.0,
        70.0,
        1,
        1.0,
    )


def test_every_request_stands_in_one_place():
    records = [
        make_record(0, intended_s=0.0, sent_s=None, connected_s=None, ttft_ms=None, latency_ms=None),  # late for ever
        make_record(1, intended_s=0.0, sent_s=0.5, connected_s=None, ttft_ms=None, latency_ms=5e3),  # connecting
        make_record(2, intended_s=0.0, sent_s=0.0, connected_s=0.1, ttft_ms=3e3, latency_ms=5e3),  # unanswered
        make_record(3, intended_s=0.0, sent_s=0.0, connected_s=0.1, ttft_ms=500.0, latency_ms=5e3),  # streaming
        make_record(4, intended_s=0.0, sent_s=0.0, connected_s=0.1, ttft_ms=500.0, latency_ms=600.0),  # ended
        make_record(5, intended_s=2.0, sent_s=2.0, connected_s=2.1, ttft_ms=500.0, latency_ms=600.0),  # not yet due
    ]
    service = {"running": 1, "path": {"in_path": 0}, "proxy": {"queued": 0}}
    (sample,) = stand(records, [sample_at(1.0, service)])
    stood = sample.standing
    assert (stood.late, stood.connecting, stood.unanswered, stood.streaming) == (1, 1, 1, 1)
    assert (stood.in_path, stood.proxy_queued, stood.running, stood.elsewhere) == (0, 0, 1, 1)
    (sample,) = stand(records, [sample_at(1.0, None)])
    assert (sample.standing.unanswered, sample.standing.elsewhere, sample.standing.beside_engine) == (1, None, None)


@pytest.mark.parametrize(
    ("service", "sender", "limit"),
    [
        ({"running": 20, "waiting": 3}, None, "engine"),
        ({"running": 20, "waiting": 0}, None, "none"),
        ({"running": 2, "waiting": 0, "path": {"in_path": 18}}, None, "path"),
        ({"running": 2, "waiting": 1}, None, "path"),  # 20 are open, and 17 of them in nobody's count
        ({"running": 20, "path_saturated": True}, None, "path"),  # the controller says so
        ({"running": 2, "waiting": 0, "proxy": {"queued": 15}}, None, "path"),
        ({"running": 20, "waiting": 3}, {"cpu_share": 0.97, "lag_ms": 1.0}, "client"),
        ({"running": 20, "waiting": 3}, {"cpu_share": 0.1, "lag_ms": 80.0}, "client"),
        (None, {"cpu_share": 0.1, "lag_ms": 1.0}, "unknown"),
    ],
)
def test_the_limit_is_where_the_requests_stand(service, sender, limit):
    times = {"intended_s": 0.0, "sent_s": 0.0, "connected_s": 0.0, "ttft_ms": 500.0, "latency_ms": 20e3}
    records = [make_record(i, **times) for i in range(20)]
    sender = None if sender is None else {"at_s": 1.0, "cpu_s": 1.0, **sender}
    samples = stand(records, [sample_at(float(second), service, sender) for second in range(1, 10)])
    assert limited_by(samples) == limit
    run = summarise(records, samples, SLO, 10.0)
    assert run.saturated_by == limit
    assert ("the PATH was the limit" in "\n".join(verdict([run]))) == (limit == "path")


def test_a_short_hitch_is_not_called_the_limit():
    queue, calm = sample_at(1.0, {"running": 2, "waiting": 9}), sample_at(2.0, {"running": 2, "waiting": 0})
    assert limited_by(stand([], [queue] + [calm] * 19)) == "none"
    assert limited_by(stand([], [queue] * 5 + [calm] * 15)) == "engine"
    assert limited_by([]) == "unknown"


def test_a_run_against_a_server_without_status_is_reported(tmp_path):
    records = [make_record(i, policy="plain-vllm", precision_tokens=None) for i in range(200)]
    samples = stand(records, [TimelineSample(policy="plain-vllm", at_s=float(i), status=None) for i in range(1, 200)])
    run = summarise(records, samples, SLO, 200.0)
    assert (run.saturated_by, run.switches, run.fp16_token_share, run.path) == ("unknown", None, None, None)
    summary = make_summary(runs=(run,), verdict=verdict([run]))
    text = write_report(tmp_path, summary, {"plain-vllm": records}, {"plain-vllm": samples}).read_text()
    assert "plain-vllm: 100.0 % of requests within the SLO. The server ran as it is: no directives" in text
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        print_report(console, summary)
    assert "plain-vllm" in console.export_text()


def make_summary(**overrides: object) -> Summary:
    runs = tuple(make_run(policy, met, count=40) for policy, met in (("fp16", 20), ("adaptive", 39)))
    load = LoadSummary(
        trace="<script>alert(1)</script>.csv",
        start_s=0,
        span_s=40,
        duration_s=40,
        requests=40,
        mean_rate_rps=1,
        peak_rate_rps=2,
        mean_prompt_tokens=10,
        mean_output_tokens=3,
        context_tokens=256,
        length_scale=0.5,
        seed=0,
    )
    fields = {
        "started_utc": "2026-01-01T00:00:00+00:00",
        "model": "m & n",
        "machine": "x",
        "load": load,
        "calibration": CALIBRATION,
        "slo": SLO,
        "slo_source": "given",
        "service_slo": {"ttft_ms": 200.0},
        "runs": runs,
        "verdict": verdict(runs),
        "options": {"url": "http://127.0.0.1:1"},
    }
    return Summary.model_validate(fields | overrides)


class Page(HTMLParser):
    """Collects tags and image sources."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_report_is_self_contained_and_escaped(tmp_path):
    summary = make_summary(incomplete="stopped <b>here</b>")
    records = {"fp16": [make_record(i, policy="fp16") for i in range(40)], "adaptive": [failed(0), make_record(1)]}
    timelines = {"fp16": [make_sample(0.0, ("a", 0, 1, 1)), make_sample(1.0, ("a", 0, 5, 2))], "adaptive": []}
    path = write_report(tmp_path, summary, records, timelines)
    text = path.read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert len(page.sources) == 2
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in page.sources)
    assert "m &amp; n" in text
    assert "ttft_ms = 200" in text
    assert "Adaptive meets the SLO" in text
    data = json.loads((tmp_path / "summary.json").read_text())
    assert Summary.model_validate(data) == summary
    keys = {"policy", "requests", "ttft_ms", "tpot_ms", "slo_attainment", "goodput_rps", "fp16_token_share", "switches"}
    assert keys <= set(data["runs"][0])
    assert set(data["runs"][0]["ttft_ms"]) == {"p50", "p90", "p99"}


def test_a_report_without_calibration_or_runs_is_still_a_page():
    text = render_html(
        make_summary(calibration=None, runs=(), verdict=(), service_slo={}), {"latencies": b"", "timeline": b""}
    )
    assert "Nothing to compare." in text
    assert "not known" in text


def test_the_terminal_table_fits_80_columns():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        print_report(console, make_summary())
    text = console.export_text()
    assert "97.5 %" in text
    assert "TTFT ms p90" in text
    assert "…" not in text
    assert max(len(line) for line in text.splitlines() if "│" in line) <= 80


def test_records_survive_the_file(tmp_path):
    records = (make_record(1), failed(0))
    path = tmp_path / "requests.jsonl"
    write_jsonl(path, records)
    assert read_requests(path) == (records[1], records[0])
    assert records[1].dispatch_lag_ms is None
