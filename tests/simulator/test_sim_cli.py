"""The simulator from outside: load, table, fit, command line. Run: python -m pytest tests/simulator/test_sim_cli.py"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim_builders import FP8, FP16, exit_status, make_arrivals

from simulator import run
from simulator.bench import arrivals, make_config, make_requests
from simulator.cluster.cluster import Scenario
from simulator.engine.cost_table import StepTimeModel, read_table
from simulator.errors import SimulationError
from simulator.fit import fit, observations
from workload.synthetic import synthetic_trace
from workload.traces import TraceError

pytestmark = pytest.mark.slow

STEP_HEADER = ",".join(observations.STEP_COLUMNS)


# -- load --------------------------------------------------------------------------------------------------------------


def test_a_trace_is_brought_to_a_rate_and_what_no_engine_computes_is_repaired():
    trace = make_arrivals((0.0, 1, 1), (10.0, 0, 5), (11.0, 5, 0), (12.0, 4000, 97), (30.0, 1, 1))
    window = arrivals(trace, 5.0, 20.0, None, 0)
    assert window == make_arrivals((5.0, 0, 5), (6.0, 5, 0), (7.0, 4000, 97))
    sizes = [(each.prompt_tokens, each.output_tokens) for each in make_requests(window, Scenario())]
    assert sizes == [(1, 5), (5, 1), (4000, 97)]
    assert len(arrivals(trace, 5.0, 20.0, 0.1, 0)) == 2
    assert len(arrivals(trace, 0.0, None, 0.1, 0)) == 3
    with pytest.raises(TraceError, match=r"from 100 s holds no request \(the trace ends at 30 s\)"):
        arrivals(trace, 100.0, 20.0, None, 0)


def test_poisson_arrivals_are_poisson_and_bursts_are_not():
    def dispersion(bursts: bool) -> float:
        times_s = [arrival.at_s for arrival in synthetic_trace(0, 20_000.0, bursts=bursts)]
        counts, _ = np.histogram(times_s, np.arange(0.0, 20_000.0, 20.0))
        return float(counts.var() / counts.mean())

    assert dispersion(False) == pytest.approx(1.0, abs=0.15)
    assert dispersion(True) > 2.0


def test_another_policy_than_the_configurations_has_its_own_parameters():
    section = {"policy": {"name": "threshold", "leave_after_s": 9}, "slo": {"ttft_ms": 70}}
    config = make_config(section, "threshold")
    assert (config.policy.model_dump()["leave_after_s"], config.slo.ttft_ms) == (9, 70)
    assert make_config(section, "static_fp16").policy.name == "static_fp16"
    with pytest.raises(SimulationError, match=r"policy\.leave_aftr_s: unknown key"):
        make_config({"policy": {"name": "threshold", "leave_aftr_s": 9}}, "threshold")


# -- table and fit -----------------------------------------------------------------------------------------------------


def measured(cost: StepTimeModel, steps: list[tuple[int, int, int]], noise: float) -> str:
    rng = np.random.default_rng(0)
    return "".join(
        f"m,nestedfp_fp16,{prefill},{decodes},{kv},{cost.step_s(prefill + decodes, decodes, kv) * 1e3 * factor}\n"
        f"m,nestedfp_fp8,{prefill},{decodes},{kv},{FP8.step_s(prefill + decodes, decodes, kv) * 1e3 * factor}\n"
        for (prefill, decodes, kv), factor in zip(steps, 1 + noise * rng.standard_normal(len(steps)), strict=True)
    )


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_fit_to_single_steps_finds_the_model_that_made_them(tmp_path: Path, noise: float):
    steps = [(p, d, kv) for p in (0, 16, 128, 512, 2048, 8192) for d in (1, 8, 64, 256) for kv in (d * 50, d * 2000)]
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]  # of an engine each; the second was killed while it wrote a line
    for file, part, rest in zip(files, (steps[::2], steps[1::2]), ("", "m,nestedfp_fp16,1"), strict=True):
        file.write_text(STEP_HEADER + "\n" + measured(FP16, part, noise) + rest)
    words = ["--model", "m", "--kv-tokens", "12345", "--gpu", "H100", "--out", str(tmp_path / "t.json")]
    given = ["--steps-csv", *map(str, files), *words]
    assert fit.main([*given, "--one-precision"]) == 0
    assert not read_table(tmp_path / "t.json").engine.mixed_steps
    assert fit.main(given) == 0
    table = read_table(tmp_path / "t.json")
    assert table.engine.mixed_steps
    assert table.fp16.knee_tokens == pytest.approx(256, rel=0 if noise == 0 else 0.3)
    for prefill, decodes, kv in steps:
        size = (prefill + decodes, decodes, kv)
        assert table.fp16.step_s(*size) == pytest.approx(FP16.step_s(*size), rel=1e-3 if noise == 0 else 0.05)
    assert table.engine.kv_tokens == 12345
    assert table.gpu == "H100"
    assert table.fit_fp16.median_relative <= noise + 1e-4


def fitted(folder: Path, start: str | None) -> int:
    """Fit a table of ``folder`` with these start costs; return the exit status."""
    sizes = [(p, d, d * 50) for p in (0, 16, 128, 512, 2048) for d in (1, 8, 64)]
    (folder / "steps.csv").write_text(STEP_HEADER + "\n" + measured(FP16, sizes, 0.0))
    words = [
        "--steps-csv",
        str(folder / "steps.csv"),
        "--model",
        "m",
        "--kv-tokens",
        "1000",
        "--out",
        str(folder / "t.json"),
    ]
    if start is not None:
        (folder / "start.csv").write_text("model,tokens,fp16_ms,fp8_ms\n" + start)
        words += ["--start-costs", str(folder / "start.csv")]
    return fit.main(words)


def test_an_engine_goes_by_what_it_measured_at_its_start_where_the_table_says_that(tmp_path: Path):
    assert fitted(tmp_path, "other,1,1,1\nm,1,9.5,5.5\nm,64,12,8\n") == 0
    assert read_table(tmp_path / "t.json").step_costs().times_ms(64) == (12.0, 8.0)
    assert fitted(tmp_path, None) == 0
    expected_ms = pytest.approx(1e3 * FP16.step_s(64, 0, 0), rel=1e-3)
    assert read_table(tmp_path / "t.json").step_costs().times_ms(64)[0] == expected_ms


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "expected rows of m, found none"),
        ("m,x,1,1\n", "tokens: expected a number"),
        ("m,1.5,2,1\n", "tokens: expected a whole number"),
        ("m,4,2,1\nm,2,2,1\n", "ascending"),
    ],
)
def test_broken_start_costs_end_the_fit_with_one_message(
    rows: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert fitted(tmp_path, rows) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model,system\n", "missing: prefill_tokens, decode_requests"),
        (f"{STEP_HEADER}\n", "found none"),
        (f"{STEP_HEADER}\nm,nestedfp_fp16,x,1,1,1\n", "prefill_tokens: expected a number"),
        (f"{STEP_HEADER}\nm,nestedfp_fp16,1,1\n", "row 1: expected 6 columns"),
    ],
)
def test_broken_measurements_end_the_fit_with_one_line(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "e.csv").write_text(content)
    arguments = ["--steps-csv", str(tmp_path / "e.csv"), "--model", "m", "--kv-tokens", "1000"]
    assert fit.main([*arguments, "--out", str(tmp_path / "t.json")]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "t.json").exists()


# -- command line ------------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [
        f"2023-11-16 18:{15 + int(a.at_s) // 60:02d}:{a.at_s % 60:09.6f},{a.prompt_tokens},{a.output_tokens}"
        for a in synthetic_trace(2, 20.0)
    ]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return path


def simulate(*arguments: object) -> int:
    return exit_status(run.main, *arguments)


KEYS = {
    *("requests", "slo", "slo_attainment", "ttft_ms", "tpot_ms"),
    *("fp16_token_share", "exact_answer_share", "switches_per_min", "mean_replicas"),
}


def test_one_policy_gives_an_object_and_several_a_list(tmp_path: Path, trace: Path, table: Path):
    out = tmp_path / "out.json"
    common = ("--trace", trace, "--table", table, "--replicas", 2, "--rate", 4, "--json", out)
    assert simulate(*common, "--policy", "threshold") == 0
    one: dict[str, Any] = json.loads(out.read_text())
    assert set(one) >= KEYS
    assert set(one["ttft_ms"]) == set(one["tpot_ms"]) == {"p50", "p90", "p99"}
    assert (one["mean_replicas"], one["policy"]) == (2, "threshold")
    assert 0 <= one["slo_attainment"] <= 1
    assert simulate(*common, "--policy", "static_fp16", "--policy", "static_fp8") == 0
    two = json.loads(out.read_text())
    assert [run["policy"] for run in two] == ["static_fp16", "static_fp8"]
    assert two[0]["requests"] == two[1]["requests"] == one["requests"]


def test_without_a_trace_the_load_is_synthetic(tmp_path: Path, table: Path):
    arguments = ("--duration", 40, "--table", table, "--policy", "threshold", "--rate", 5)
    assert simulate(*arguments, "--json", tmp_path / "o.json") == 0
    assert json.loads((tmp_path / "o.json").read_text())["rate_rps"] == pytest.approx(5, rel=0.5)


ON_A_TRACE = "--trace {trace} --policy static_fp16"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--trace {trace}", "expected --policy NAME"),
        ("--trace {trace} --policy best", "--policy: expected one of exact_first"),
        ("--trace missing.csv --policy static_fp16", "missing.csv: cannot read the trace"),
        (f"{ON_A_TRACE} --rate -1", "--rate: expected requests"),
        (f"{ON_A_TRACE} --rate nan", "--rate: expected requests"),
        (f"{ON_A_TRACE} --replicas 0", "replicas: "),
        (f"{ON_A_TRACE} --start 9999", "choose another --start"),
        (f"{ON_A_TRACE} --table {{trace}}", "not an engine table"),
        (f"{ON_A_TRACE} --config {{trace}}", "expected keys and values"),
        (f"{ON_A_TRACE} --json no/such/folder.json", "--json: expected a file in a folder that exists"),
        (f"{ON_A_TRACE} --json simulator", "--json: expected a file in a folder that exists"),
        (f"{ON_A_TRACE} --rate 1e-9", "less than one request"),
        ("--policy threshold --start 5", "--start: of the window of a --trace"),
    ],
)
def test_wrong_arguments_end_with_one_line_and_status_2(
    words: str, message: str, trace: Path, capsys: pytest.CaptureFixture[str]
):
    assert simulate(*words.format(trace=trace).split()) == 2
    assert message in capsys.readouterr().err
