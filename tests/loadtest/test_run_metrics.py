"""What a run's records and samples come to: percentiles, attainment, counters."""

import pytest
from loadtest_builders import SLO, failed, make_record, make_sample

from loadtest.report.run_summary import counter_growth, exact_answer_share, fp8_reasons, summarise
from loadtest.report.verdict import verdict
from loadtest.report.write import table_row
from workload.records import PrecisionTokens, ServiceStatus, TimelineSample


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
    assert run.goodput_rps == pytest.approx(0.2)
    assert run.rate_rps == pytest.approx(0.6)
    assert run.ttft_ms.p50 == 50.0
    assert run.ttft_ms.p99 == pytest.approx(50 + 0.96 * 51)  # five values, the largest 101
    assert run.itl_ms.p50 == 10.0
    assert run.dispatch_lag_ms.p99 == pytest.approx(2.0)
    assert run.fp16_token_share == pytest.approx(7 / 9)  # cached tokens were not computed
    assert (run.switches, run.max_waiting) == (5, 7)
    assert (run.replicas_fewest, run.replicas_most) == (1, 1)
    assert run.output_tokens_per_s == pytest.approx(13 / 10)


@pytest.mark.parametrize(
    ("prompt", "completion", "exact"),
    [
        ({"fp16": 5, "fp8": 0}, {"fp16": 2, "fp8": 0}, 1.0),
        ({"fp16": 5, "fp8": 0}, {"fp16": 2, "fp8": 1}, 0.5),
        ({"fp16": 5, "fp8": 1}, {"fp16": 2, "fp8": 0}, 0.5),
        ({"fp16": 5, "fp8": 0, "cached": {"fp16": 0, "fp8": 16}}, {"fp16": 2, "fp8": 0}, 0.5),
        ({"fp16": 5, "fp8": 0, "cached": {"fp16": 16, "fp8": 0}}, {"fp16": 2, "fp8": 0}, 1.0),
    ],
)
def test_an_answer_is_exact_when_none_of_its_tokens_saw_fp8(prompt, completion, exact):
    whole = {"prompt": {"fp16": 1, "fp8": 0}, "completion": {"fp16": 1, "fp8": 0}}
    tokens = [whole, {"prompt": prompt, "completion": completion}]
    records = [make_record(precision_tokens=PrecisionTokens.model_validate(each)) for each in tokens]
    assert exact_answer_share([*records, make_record(precision_tokens=None)]) == exact
    assert exact_answer_share([make_record(precision_tokens=None)]) is None
    pinned = records[1].model_copy(update={"asked": "exact"})
    assert exact_answer_share([records[0], pinned], "exact") == 2 * exact - 1
    assert exact_answer_share(records, "exact") is None


def test_counters_survive_a_restart_and_a_new_replica():
    samples = [
        make_sample(0.0, ("a", 5, 0, 0)),
        make_sample(1.0, ("a", 7, 0, 0), ("b", 100, 0, 0)),  # b was there before we looked
        make_sample(2.0, ("a", 1, 0, 0), ("b", 101, 0, 0)),  # a restarted
    ]
    assert counter_growth(samples, lambda replica: replica.switches) == 2 + 1 + 1
    assert counter_growth(samples[:1], lambda replica: replica.switches) == 0


def test_reasons_for_fp8_are_told_over_all_replicas_the_most_frequent_first():
    def told(at_s, *reasons):
        replicas = [{"id": f"r{i}", "mode": "fp8", "fp8_reasons": each} for i, each in enumerate(reasons)]
        status = ServiceStatus.model_validate({"mode": "auto", "epoch": 1, "replicas": replicas})
        return TimelineSample(policy="adaptive", at_s=at_s, status=status)

    samples = [
        told(0.0, {"directive": 5}, {}),
        told(1.0, {"directive": 5, "tpot_slack": 3}, {"ttft_slack": 4}),
        told(2.0, {"directive": 6, "tpot_slack": 9}, {"ttft_slack": 5}),
    ]
    assert list(fp8_reasons(samples).items()) == [("tpot_slack", 9), ("ttft_slack", 5), ("directive", 1)]
    assert fp8_reasons([told(0.0, {}), told(1.0, {})]) is None


def test_late_requests_make_a_run_invalid_and_a_few_do_not():
    late = [make_record(i, sent_s=i + (0.08 if i < 30 else 0.001)) for i in range(1000)]
    run = summarise(late, [], SLO, 1000.0)
    assert (run.late_starts, run.valid) == (30, False)
    assert "30 of 1000 requests left more than 50 ms late" in "\n".join(verdict([run]))
    run = summarise(late[25:], [], SLO, 1000.0)
    assert (run.late_starts, run.valid, run.invalid_because) == (5, True, None)


def refused(index):
    said = f'HTTP 400: {{"error": {{"message": "Token id {index} is out of vocabulary"}}}}'
    return failed(index).model_copy(update={"sent_s": index + 0.001, "status": 400, "error": said})


def test_a_run_without_an_answer_is_invalid_and_says_why():
    run = summarise([refused(i) for i in range(10)], [], SLO, 10.0)
    why = "none of 10 requests was answered: 10 x HTTP 400: Token id N is out of vocabulary"
    assert (run.errors, run.unanswered, run.valid, run.invalid_because) == (10, True, False, why)
    text = "\n".join(verdict([run]))
    assert "10 of 10 requests failed; they count as SLO misses: 10 x HTTP 400: Token id N is out of vocab" in text
    assert "INVALID: no request was answered" in text
    assert "the client was the limit" not in text
    assert table_row(run)[2] == "10 INVALID"
    run = summarise([*(refused(i) for i in range(9)), make_record(9)], [], SLO, 10.0)
    assert (run.errors, run.unanswered, run.valid, run.invalid_because) == (9, False, True, None)
    assert "9 of 10 requests failed; they count as SLO misses: 9 x HTTP 400" in "\n".join(verdict([run]))


def test_changes_of_the_number_of_exact_replicas_are_counted():
    def sample(at_s, *directed):
        found = make_sample(at_s, *((str(i), 0, 0, 0) for i in range(len(directed))))
        replicas = [r.model_copy(update={"directed": d}) for r, d in zip(found.status.replicas, directed, strict=True)]
        return found.model_copy(update={"status": found.status.model_copy(update={"replicas": tuple(replicas)})})

    samples = [
        sample(0, "fp16", "fp16"),
        sample(1, "fp16", "auto"),
        sample(2, "auto", "fp16"),
        sample(3, "auto", "auto"),
    ]
    assert summarise([make_record(0)], samples, SLO, duration_s=30.0).k_changes_per_minute == 4.0


@pytest.mark.parametrize(("saturated", "share", "said"), [(1, 0.05, False), (2, 0.1, True)])
def test_a_frontend_that_the_service_calls_the_limit_is_said(saturated, share, said):
    samples = [make_sample(float(at_s), ("a", 0, 0, 0)) for at_s in range(20)]
    told = [
        sample.model_copy(update={"status": sample.status.model_copy(update={"path_saturated": True})})
        for sample in samples[:saturated]
    ]
    run = summarise([make_record(0)], [*told, *samples[saturated:]], SLO, duration_s=30.0)
    assert run.path_saturated_share == share
    assert ("the HTTP frontend was the limit" in "\n".join(verdict([run]))) == said
