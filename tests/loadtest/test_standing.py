"""Where requests stood at each moment, and so what the limit was: client, path or engine."""

import pytest
from loadtest_builders import SLO, make_record

from controller.audit import ReplicaStatus as ControllerReplica
from controller.audit import StatusReport
from controller.messages import PathStats
from loadtest.report.run_summary import summarise
from loadtest.report.standing import limited_by, stand
from loadtest.report.verdict import verdict
from nestedfp.steps.step_rule import StepRule
from workload.records import ServiceStatus, TimelineSample


def sample_at(at_s: float, service: dict[str, object] | None, sender: dict[str, float] | None = None) -> TimelineSample:
    """One replica, or a server without a status."""
    status = None
    if service is not None:
        known = {"id": "a", "mode": "fp16"} | {k: v for k, v in service.items() if k in ("running", "waiting", "path")}
        rest = {k: v for k, v in service.items() if k in ("path_saturated",)}
        status = {"mode": "auto", "epoch": 1, "replicas": [known], **rest}
    fields = {"policy": "adaptive", "at_s": at_s, "status": status, "sender": sender}
    return TimelineSample.model_validate(fields)


def test_what_the_controller_says_of_the_path_is_read():
    replica = ControllerReplica(
        id="a", mode="fp8", epoch=7, directive="fp8", acked=True, ready=True, stale=False, age_s=0.1, directed="fp8",
        lease_remaining_s=1.0, running=3, waiting=2, waiting_tokens=9, oldest_wait_s=0.1, kv_usage=0.5, tokens_fp16=11,
        tokens_fp8=12, steps_fp16=1, steps_fp8=1, arrivals=5, arrived_tokens=9, finished=0, switches=5,
        ttft_p90_ms=None, tpot_p90_ms=None, arrivals_per_s=None, tokens_per_s=None,
        path=PathStats(in_path=4, wait_p90_ms=60.0, loop_lag_ms=70.0, open_streams=9, paused_streams=1),
    )  # fmt: skip
    report = StatusReport(
        mode="fp8", epoch=7, reason="r", last_reason="r", policy="p", since_s=1.0, rule=StepRule(), override=None,
        path_saturated=True, replicas=(replica, replica.model_copy(update={"path": None})),
    )  # fmt: skip
    status = ServiceStatus.model_validate(report.model_dump(mode="json"))
    assert (status.in_path, status.waiting, status.running) == (4, 4, 6)
    assert status.path_saturated


def test_every_request_stands_in_one_place():
    records = [
        make_record(0, intended_s=0.0, sent_s=None, connected_s=None, ttft_ms=None, latency_ms=None),  # late for ever
        make_record(1, intended_s=0.0, sent_s=0.5, connected_s=None, ttft_ms=None, latency_ms=5e3),  # connecting
        make_record(2, intended_s=0.0, sent_s=0.0, connected_s=0.1, ttft_ms=3e3, latency_ms=5e3),  # unanswered
        make_record(3, intended_s=0.0, sent_s=0.0, connected_s=0.1, ttft_ms=500.0, latency_ms=5e3),  # streaming
        make_record(4, intended_s=0.0, sent_s=0.0, connected_s=0.1, ttft_ms=500.0, latency_ms=600.0),  # ended
        make_record(5, intended_s=2.0, sent_s=2.0, connected_s=2.1, ttft_ms=500.0, latency_ms=600.0),  # not yet due
    ]
    service = {"running": 1, "path": {"in_path": 0}}
    (sample,) = stand(records, [sample_at(1.0, service)])
    stood = sample.standing
    assert (stood.late, stood.connecting, stood.unanswered, stood.streaming) == (1, 1, 1, 1)
    assert (stood.in_path, stood.running, stood.elsewhere) == (0, 1, 1)
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
