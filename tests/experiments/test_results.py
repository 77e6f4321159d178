"""What comes out of reports: summaries, and the page that shows them."""

import json

import pytest
from experiment_settings import SLO, written
from loadtest_builders import make_record

from experiments import __main__ as command
from experiments import config, results
from experiments.config import ExperimentError
from loadtest.report.run_summary import summarise


def request(index, ttft_ms=100.0, gap_ms=20.0, precision="fp16", error=None):
    times = {"ttft_ms": ttft_ms, "tpot_ms": gap_ms, "latency_ms": ttft_ms + 10 * gap_ms}
    tokens = {"precision_tokens": {"prompt": {precision: 50}, "completion": {precision: 11}}}
    if error is not None:
        times, tokens = dict.fromkeys(times), {"precision_tokens": None, "status": None, "error": error}
    return make_record(index, output_tokens=0 if error else 11, chunk_ms=(), **times, **tokens)


def reported(out, run, rate, seed, records):
    """A report as the load test leaves it, from its own functions."""
    folder = out / "runs" / run / f"{rate:g}-{seed}" / "20260101T000000Z"
    folder.mkdir(parents=True)
    summary = summarise(records, (), SLO, 10.0).model_dump(mode="json")
    (folder / "summary.json").write_text(json.dumps({"runs": [summary]}))


def test_a_summary_counts_every_request_and_says_how_far_chance_reaches(tmp_path):
    experiment = config.load(written(tmp_path))
    good = [request(i) for i in range(6)]
    late = [request(6, ttft_ms=300.0), request(7, ttft_ms=900.0), request(8, gap_ms=50.0, precision="fp8")]
    reported(tmp_path, "best", 2, 0, [*good, *late, request(9, error="cut off")])
    reported(tmp_path, "best", 2, 1, good)
    (tmp_path / results.MACHINE).write_text("two cores\n")
    found = results.collect(experiment, tmp_path)
    first, second = found.runs
    assert found.machine == "two cores"
    assert (first.policy, first.rate_rps, first.seed, first.requests) == ("best", 2, 0, 10)
    assert first.slo_attainment == pytest.approx(0.6)
    assert first.slo_attainment_low < 0.6 < first.slo_attainment_high
    assert first.errors == {"cut off": 1}
    assert (first.slo_attainment_worst_10s, second.slo_attainment_worst_10s) == (pytest.approx(0.6), None)
    assert first.fp16_token_share == pytest.approx(8 / 9)
    assert second.slo_attainment == second.slo_attainment_high == 1

    results.write(found, tmp_path / "results")
    assert results.read(tmp_path / "results") == found


def test_a_load_test_without_an_answer_is_summed_up_as_invalid(tmp_path):
    reported(tmp_path, "best", 2, 0, [request(i, error="HTTP 400: no such model") for i in range(10)])
    reported(tmp_path, "best", 2, 1, [request(0)])
    first, second = results.collect(config.load(written(tmp_path)), tmp_path).runs
    assert (first.valid, first.slo_attainment, first.errors) == (False, 0.0, {"HTTP 400: no such model": 10})
    assert second.valid


def test_reports_of_another_machine_are_added_to_a_summary(tmp_path, capsys):
    path = written(tmp_path)
    parts, kept = (tmp_path / "first", tmp_path / "second"), tmp_path / "results"
    for part, machine, seeds in zip(parts, ("one", "two"), ((0, 1), (1,)), strict=True):
        for seed in seeds:
            late = [request(9, ttft_ms=900.0)] if part.name == "second" else []
            reported(part, "best", 2, seed, [request(0), *late])
        (part / results.MACHINE).write_text(machine)
    for part in parts:
        assert command.main(["summary", str(path), "--out", str(part), "--results", str(kept)]) == 0
    folder = next(kept.glob("*"))
    found = results.read(folder)
    assert [(cell.seed, cell.slo_attainment) for cell in found.runs] == [(0, 1.0), (1, 0.5)]
    assert found.machine == "one | then: two"
    with pytest.raises(ExperimentError, match="replicas: the summary there has 7"):
        results.joined(found.model_copy(update={"replicas": 7}), found)

    part = parts[1]
    moved = written(tmp_path, load={"start_s": 5, "duration_s": 10, "rates_rps": [2], "seeds": [1]})
    assert command.main(["summary", str(moved), "--out", str(part), "--results", str(kept)]) == 2
    assert "window: the summary there has start_s=0.0" in capsys.readouterr().err
    assert results.read(folder) == found
    (folder / results.KEPT).write_text('{"name": "test"}')
    assert command.main(["summary", str(path), "--out", str(part), "--results", str(kept)]) == 2
    assert "of another version" in capsys.readouterr().err


def test_a_report_of_another_slo_is_named(tmp_path):
    reported(tmp_path, "best", 2, 0, [request(0)])
    experiment = config.load(written(tmp_path, slo={"ttft_ms": 100, "tpot_ms": 33}))
    with pytest.raises(ExperimentError, match="a report of best has the SLO"):
        results.collect(experiment, tmp_path)


def test_a_report_of_another_version_is_named(tmp_path):
    reported(tmp_path, "best", 2, 0, [request(0)])
    summary = next(tmp_path.glob("runs/*/*/*/summary.json"))
    summary.write_text(json.dumps({"runs": [{**json.loads(summary.read_text())["runs"][0], "gone": 1}]}))
    with pytest.raises(ExperimentError, match=r"a report of another version \(gone\); run that load test again"):
        results.collect(config.load(written(tmp_path)), tmp_path)


def test_an_experiment_without_a_report_says_so(tmp_path):
    with pytest.raises(ExperimentError, match="found none: run the experiment first"):
        results.collect(config.load(written(tmp_path)), tmp_path)
