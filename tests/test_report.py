"""Metrics, calibration, verdict and report on made-up records. Run: python -m pytest tests/test_report.py"""

import json
from html.parser import HTMLParser

import pytest
from rich.console import Console

from loadtest.calibrate import Calibration, capacity_rps, choose_rate_rps, choose_slo, unloaded_latency
from loadtest.config import LoadtestConfig
from loadtest.errors import LoadtestError
from loadtest.metrics import Slo, counter_growth, fp16_token_share, percentiles, summarise
from loadtest.plots import fp8_shares
from loadtest.records import RequestRecord, TimelineSample, read_requests, write_jsonl
from loadtest.report import LoadSummary, Summary, print_report, render_html, write_report
from loadtest.verdict import verdict

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


CALIBRATION = Calibration(
    probe_s=10.0,
    probe_concurrency=4,
    mean_prompt_tokens=100.0,
    mean_output_tokens=10.0,
    unloaded_requests=3,
    unloaded_ttft_ms=30.0,
    unloaded_tpot_ms=4.0,
    fp16_capacity_rps=2.0,
    fp8_capacity_rps=3.0,
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
    assert capacity_rps(records, probe_s=10.0, mean_output_tokens=10.0) == pytest.approx(1.0, rel=0.02)
    with pytest.raises(LoadtestError, match=r"no token came back between 300 and 1000 s .*--probe"):
        capacity_rps(records, probe_s=1000.0, mean_output_tokens=10.0)


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
    late = few.dispatch_lag_ms.model_copy(update={"p99": 80.0})
    assert "80 ms late" in "\n".join(verdict([few.model_copy(update={"dispatch_lag_ms": late})]))
    assert verdict([]) == ()


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
