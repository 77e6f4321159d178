"""Arrivals and figures of the open-loop engine benchmark; its loop over a real engine on the CPU.

Run: ``pytest -q tests/benchmarks/test_engine_mixed.py``
"""

import itertools
import json
import statistics

import pytest
from processes import ROOT, run_script

from benchmarks.engine.engine_mixed import RequestTimes, arrivals, figures_ms, main, percentile


def test_arrivals_depend_on_the_seed_alone_and_come_at_the_rate():
    times_s = arrivals(3, 20.0, 200.0)
    assert times_s == arrivals(3, 20.0, 200.0) != arrivals(4, 20.0, 200.0)
    assert times_s == sorted(times_s)
    assert 0 < times_s[0] < times_s[-1] < 200
    assert len(times_s) == pytest.approx(4000, rel=0.05)
    gaps = [b - a for a, b in itertools.pairwise(times_s)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.1), "a Poisson process"


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_a_rate_or_duration_of_nothing_is_refused(rate, seconds):
    with pytest.raises(ValueError, match="above zero"):
        arrivals(1, rate, seconds)


def test_a_simulated_engine_gets_the_same_requests(tmp_path, capsys):
    table = str(ROOT / "simulator/engine/tables/h100-mistral-24b-served.json")
    out = tmp_path / "out.csv"
    arguments = ["--table", table, "--seconds", "200", "--out", str(out)]
    assert main([*arguments, "--rate-rps", "0.05"]) == 0
    assert main([*arguments, "--rate-rps", "14"]) == 0
    rows = [line.split(",") for line in out.read_text().splitlines() if line.startswith("mistral-24b,")]
    figures = {(row[1], float(row[2])): [float(value) for value in row[3:]] for row in rows}
    assert len(figures) == 4
    for rate in (0.05, 14.0):
        fp16, fp8 = figures["simulated_fp16", rate], figures["simulated_fp8", rate]
        assert all(a > b > 0 for a, b in zip(fp16, fp8, strict=True))
    # A request alone: a step of 416 tokens, then steps of one.
    assert figures["simulated_fp16", 0.05][0] == pytest.approx(16.75 + 416 * 0.02776 + 160 * 0.0372, rel=0.05)
    assert figures["simulated_fp16", 0.05][2] == pytest.approx(16.8, rel=0.02)
    assert all(figures["simulated_fp16", 14.0][i] > figures["simulated_fp16", 0.05][i] for i in range(4))
    for lacking in (arguments, ["--table", table, "--rate-rps", "14"]):
        with pytest.raises(SystemExit):
            main(lacking)
        assert "--table needs --rate-rps" in capsys.readouterr().err


def test_percentiles_are_values_that_occurred():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile([5.0], 0.99) == 5.0


def test_figures_count_the_middle_of_the_run_and_waiting_before_the_first_step():
    steady = [RequestTimes(float(s), s + 0.2, s + 0.2 + 0.03 * 87, 88) for s in range(20, 80)]
    edges = [RequestTimes(0.0, 50.0, 99.0, 88), RequestTimes(95.0, 150.0, 199.0, 88)]
    ttft_p50, ttft_p99, tpot_p50, tpot_p99 = figures_ms([*steady, *edges], 100.0)
    assert (ttft_p50, ttft_p99) == pytest.approx((200.0, 200.0))
    assert (tpot_p50, tpot_p99) == pytest.approx((30.0, 30.0))
    with pytest.raises(ValueError, match="none of 2 requests"):
        figures_ms(edges, 100.0)


@pytest.mark.engine
def test_every_request_of_an_open_loop_is_answered_in_full_by_a_real_engine():
    engine = {"max_model_len": 64, "enforce_eager": True, "max_num_seqs": 32}
    spec = {"model": "fairytales-8m", "model_dir": str(ROOT / "models" / "fairytales-8m"), "system": "nestedfp"}
    load = {"tokens_in": 24, "tokens_out": 6, "load": 0.5, "budget_tokens": 512, "seconds": 4.0, "seed": 1}
    given = json.dumps({**spec, **load, "rate_rps": None, "capacity_requests": 24, "engine": engine})
    quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    said = run_script("benchmarks/engine/engine_mixed.py", arguments=("--spec", given), timeout_s=280, env=quiet)
    rows = [json.loads(line[4:]) for line in said.splitlines() if line.startswith("ROW ")]
    assert [row[1] for row in rows] == ["nestedfp_fp16", "nestedfp_fp8"]
    for _, _, rate_rps, *times_ms in rows:
        assert rate_rps > 0
        assert all(0 < value < 60_000 for value in times_ms)
        assert times_ms[0] <= times_ms[1]
        assert times_ms[2] <= times_ms[3]
