"""The HTTP benchmark's pure parts: processor time by process, percentiles, rows, loads, and the steps of a timed engine."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from live_service import wait_until
from processes import ROOT

from benchmarks.engine import engine_shapes
from benchmarks.http import http_path, http_procs, http_systems
from benchmarks.http.http_measure import HttpLoad, figures
from benchmarks.timed.timed_steps import Positions, StepClock
from loadtest.sender.plan import CUT
from workload.records import RequestRecord, mean_tpot_ms


def test_the_path_is_all_that_a_process_started_but_engines():
    nested = "import subprocess; subprocess.run(['VLLM' + '::EngineCore', '60'], executable='/bin/sleep')"
    with subprocess.Popen([sys.executable, "-c", nested], start_new_session=True) as outer:
        try:
            assert wait_until(lambda: http_procs.of_role(outer.pid, "engine"), 30)
            assert list(http_procs.path_s(outer.pid)) == [outer.pid]
            assert http_procs.path_s(outer.pid)[outer.pid] > 0
            assert http_procs.of_role(outer.pid, "controller") == []
        finally:
            os.killpg(outer.pid, signal.SIGKILL)


def record(at_s, chunks_s=(), tokens=None, error=None):
    chunk_ms = tuple((each - at_s) * 1e3 for each in chunks_s)
    count = len(chunk_ms) if tokens is None else tokens
    return RequestRecord(
        policy="plain", index=0, intended_s=at_s, sent_s=at_s, prompt_tokens=16, max_tokens=count, output_tokens=count, error=error,
        ttft_ms=chunk_ms[0] if chunk_ms else None, tpot_ms=mean_tpot_ms(chunk_ms, count), chunk_ms=chunk_ms,
    )  # fmt: skip


def test_only_the_window_counts_and_merged_tokens_count_as_many():
    found = figures(
        [
            record(0.5, (0.6, 1.5)),  # began before the window
            record(1.0, (1.1, 1.6), tokens=3),
            record(1.5, (1.8, 2.2), tokens=3),
            record(1.6, error="HTTP 503: full"),
            record(1.9, (2.1,), error=CUT),
        ],
        1.0,
        2.0,
        0.011,
    )
    assert found == {
        "tokens_per_s": f"{1 + 3 + 1.5:.2f}",
        "ttft_p50_ms": "200.00",
        "ttft_p99_ms": "298.00",
        "tpot_p50_ms": "225.00",
        "path_cpu_us_per_token": f"{0.011 * 1e6 / 5.5:.2f}",
        "requests": 2,
        "errors": "1 x HTTP 503: full",
    }
    assert figures([], 0.0, 1.0, 0.1)["path_cpu_us_per_token"] == ""


def test_an_open_loop_has_arrivals_and_a_closed_one_streams(tmp_path):
    opened = HttpLoad("open", 16, 88, warm_s=1, window_s=2, rate_per_s=20).plan("http://127.0.0.1:1", "m", tmp_path)
    closed = HttpLoad("closed", 16, 88, warm_s=1, window_s=2, streams=4).plan("http://127.0.0.1:1", "m", tmp_path)
    assert (opened.kind, closed.kind, closed.users) == ("open", "closed", 4)
    assert [request.output_tokens for request in closed.requests[:6]] == [1, 23, 45, 67, 88, 88]
    assert {request.output_tokens for request in opened.requests} == {88}
    assert 0 < opened.requests[0].at_s < opened.requests[-1].at_s < opened.duration_s == 3


@pytest.mark.parametrize("wrong", [["--systems", "vllm"], ["--gpu", "--models", "gpt"]])
def test_what_the_benchmark_does_not_know_is_refused_in_a_line(wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        http_path.main(wrong)
    assert f"{wrong[-2]}: expected some of" in capsys.readouterr().err


def engine(**options):
    folder = ROOT / "models" / "fairytales-8m"
    return http_systems.EngineArguments(model_id=folder.name, model_dir=folder, kv_cache_bytes=1 << 28, **options)


def test_the_service_takes_the_configuration_that_the_benchmark_writes(tmp_path):
    import yaml

    from deploy.config import load

    path = tmp_path / "deployment.yaml"
    path.write_text(yaml.safe_dump(http_systems.deployment(engine(step_ms=15), port=8211, replicas=2)))
    config = load(path)
    assert config.engine.extra == {"worker_cls": "benchmarks.timed.timed_worker.TimedNestedFPWorker"}
    assert (config.http.port, config.replicas, config.engine.max_num_seqs) == (8211, 2, 256)


def test_vllm_gets_the_same_engine_arguments():
    command = " ".join(http_systems.vllm_command(engine(step_ms=15, extra={"compilation_config": {"level": 0}}), 8212))
    for part in (
        "--max-num-seqs 256",
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--kv-cache-memory-bytes 268435456",
        "--worker-cls benchmarks.timed.timed_worker.TimedCPUWorker",
        '--compilation-config {"level": 0}',
        "--port 8212",
    ):
        assert part in command
    assert "worker-cls" not in " ".join(http_systems.vllm_command(engine(), 8212))


def test_a_step_that_continues_overlaps_with_the_core_and_one_that_begins_anew_lasts_in_full():
    pace = StepClock(0.010)
    assert pace.wait_s(5.000, continues=False) == pytest.approx(0.010)
    assert pace.wait_s(5.013, continues=True) == pytest.approx(0.007)  # due at 5.020
    assert pace.wait_s(5.022, continues=False) == pytest.approx(0.010)
    assert pace.wait_s(5.050, continues=True) == pytest.approx(0.010)  # too late to have overlapped
    assert pace.wait_s(5.075, continues=True) == pytest.approx(0.010)


def step(new=(), cached=(), finished=()):
    scheduled = {name: count for name, count, *_ in (*new, *cached)}
    return SimpleNamespace(
        finished_req_ids=set(finished),
        num_scheduled_tokens=scheduled,
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, prompt_token_ids=[1] * prompt, num_computed_tokens=0)
            for name, _, prompt in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, *_ in cached],
            num_computed_tokens=[computed for _, _, computed, _ in cached],
            num_output_tokens=[outputs for *_, outputs in cached],
        ),
    )


def test_a_prompt_in_pieces_gets_its_token_from_the_last_piece():
    positions = Positions()
    assert positions.sampling(step(new=[("a", 8, 8), ("b", 6, 10)])) == ["a"]
    assert positions.sampling(step(cached=[("a", 1, 8, 1), ("b", 4, 6, 0)])) == ["a", "b"]
    # Preempted after three tokens: prompt and answer are computed again, in two pieces.
    assert positions.sampling(step(cached=[("a", 7, 0, 3)], finished=["b"])) == []
    assert positions.sampling(step(cached=[("a", 4, 7, 3)])) == ["a"]


def test_every_token_of_a_shape_has_a_text(monkeypatch, tmp_path):
    from tokenizers import Tokenizer

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = engine_shapes.model_folder("llama-8b")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    assert tokenizer.get_vocab_size() == size == 128256
    assert tokenizer.decode([4096]) == " x4096" or tokenizer.decode([4096]) == "x4096"
    text = "the old fox ran over a red hill"
    assert (
        Tokenizer.from_file(str(engine_shapes.TOKENIZER / "tokenizer.json")).encode(text).ids
        == tokenizer.encode(text).ids
    )
