"""The report that a load test leaves, as a page and on the terminal."""

import json
import re
from math import isnan

from loadtest_builders import SLO, failed, make_record, make_run

from loadtest.report.plots import shares_over_time
from loadtest.report.run_summary import is_exact, met, summarise
from loadtest.report.verdict import verdict
from loadtest.report.write import HEADER, LoadSummary, Summary, render_html, report_lines, write_report


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
        "carried_rps": 2.0,
        "slo": SLO,
        "service_slo": {"ttft_ms": 200.0},
        "runs": runs,
        "verdict": verdict(runs),
        "options": {"url": "http://127.0.0.1:1"},
    }
    return Summary.model_validate(fields | overrides)


def test_a_run_against_a_server_without_status_is_reported(tmp_path):
    records = [make_record(i, policy="plain-vllm", precision_tokens=None) for i in range(200)]
    run = summarise(records, (), SLO, 200.0)
    assert (run.path_saturated_share, run.switches, run.fp16_token_share) == (None, None, None)
    summary = make_summary(runs=(run,), verdict=verdict([run]))
    text = write_report(tmp_path, summary, {"plain-vllm": records}).read_text()
    assert "plain-vllm: 100.0 % of requests within the SLO. The server ran as it is: no directives" in text
    assert any("plain-vllm" in line for line in report_lines(summary))


def test_the_report_is_self_contained_and_escaped(tmp_path):
    summary = make_summary(incomplete="stopped <b>here</b>")
    records = {"fp16": [make_record(i, policy="fp16") for i in range(40)], "adaptive": [failed(0), make_record(1)]}
    path = write_report(tmp_path, summary, records)
    text = path.read_text()
    assert not re.search(r"<script|<b>| href=", text)
    assert re.findall(r' src="(.{27})', text) == ["data:image/png;base64,iVBOR"]
    assert "m &amp; n" in text
    assert "ttft_ms = 200" in text
    assert "Adaptive meets the SLO" in text
    data = json.loads((tmp_path / "summary.json").read_text())
    assert Summary.model_validate(data) == summary
    keys = {"policy", "requests", "ttft_ms", "tpot_ms", "slo_attainment", "goodput_rps", "fp16_token_share", "switches"}
    assert keys <= set(data["runs"][0])
    shares = ["exact_answer_share", "exact_answer_share_of_pinned", "fp16_token_share"]
    assert [name for name in data["runs"][0] if name in shares] == shares
    assert set(data["runs"][0]["ttft_ms"]) == {"p50", "p90", "p99"}


def test_a_report_without_calibration_or_runs_is_still_a_page():
    text = render_html(make_summary(carried_rps=None, runs=(), verdict=(), service_slo={}), b"")
    assert "Nothing to compare." in text
    assert "not known" in text


def test_the_terminal_table_has_a_column_for_each_run_and_fits_80_columns():
    lines = report_lines(make_summary())
    assert ["SLO", "met", "50.0", "%", "97.5", "%"] in [line.split() for line in lines]
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("policy")) :][: len(HEADER)]
    assert max(map(len, table)) <= 80


def test_shares_over_time_are_those_of_the_requests_that_arrived_then_and_tell():
    records = [make_record(index, ttft_ms=50.0 if index < 6 else 500.0) for index in range(10)]
    shares = shares_over_time(records, [0.0, 5.0, 10.0, 15.0], lambda record: met(record, SLO))
    assert shares[:2] == [1.0, 0.2]
    assert isnan(shares[2]), "nobody arrived"
    assert [is_exact(record) for record in (records[0], failed(1))] == [False, None]
