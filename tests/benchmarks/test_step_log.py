"""The log of an engine's steps: real engines write it, a command makes sizes of it.

Run: ``pytest -q tests/benchmarks/test_step_log.py``
"""

import pytest
from processes import ROOT, run_json

from benchmarks.steps import step_sizes
from benchmarks.steps.step_log import COLUMNS, LoggedStep, StepLog, StepLogError, log_folder, read_steps, steps_of

ENGINE = {
    "model": str(ROOT / "models" / "fairytales-8m"),
    "dtype": "float16",
    "max_model_len": 256,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 32 << 20,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
}
PROMPTS = [{"prompt_token_ids": list(range(300, 300 + tokens))} for tokens in (20, 30, 100)]


def step(tokens=100, mode="fp8", gpu_ms=8.0, idle_ms=0.5, requests=10, prompts=1):
    return LoggedStep(1.5, mode, tokens, requests, prompts, 900, gpu_ms, idle_ms)


def test_what_is_written_is_read(tmp_path):
    steps = [step(), step(gpu_ms=None, idle_ms=None), step(idle_ms=None)]
    log = StepLog(tmp_path / "new" / "steps-1.csv")
    for each in steps:
        log.write(each)
    assert list(read_steps(tmp_path / "new" / "steps-1.csv")) == steps, "without closing: an engine may be killed"
    log.close()
    with pytest.raises(FileExistsError):
        StepLog(tmp_path / "new" / "steps-1.csv")


def test_a_line_that_was_cut_off_is_left_out_and_a_broken_one_is_named(tmp_path):
    path = tmp_path / "steps-1.csv"
    good = "1.5,fp8,100,10,1,900,8.0,0.5"
    path.write_text(f"{','.join(COLUMNS)}\n{good}\n1.5,fp8,10")
    assert list(read_steps(path)) == [step()]
    for broken in ("1.5,fp8,x,10,1,9,,", "1.5,fp8,100", "1.5,fp8,100,10,1,,,", good + ",7", good + "x"):
        path.write_text(f"{','.join(COLUMNS)}\n{good}\n{broken}\n")
        with pytest.raises(StepLogError, match=r"steps-1\.csv:3: expected a step, got"):
            list(read_steps(path))
    path.write_text("a,b\n1,2\n")
    with pytest.raises(StepLogError, match="expected the columns began_s"):
        list(read_steps(path))


def test_steps_become_sizes_that_the_simulator_is_fitted_to(tmp_path, capsys):
    from simulator.fit.observations import STEP_COLUMNS

    log = StepLog(tmp_path / "a" / "steps-1.csv")
    log.write(LoggedStep(1.0, "fp16", 450, 35, 1, 9000, 35.0, None))  # the first: when it began is not known
    log.write(LoggedStep(2.0, "fp16", 450, 35, 1, 16000, 35.0, 0.5))
    log.write(LoggedStep(3.0, "fp8", 3, 3, 0, 600, 9.0, 300.0))  # after a pause
    log.close()
    out = tmp_path / "sizes.csv"
    given = [str(tmp_path / "a"), "--model", "m", "--out", str(out)]
    assert step_sizes.main(given) == 0
    rows = [line for line in out.read_text().splitlines() if not line.startswith("#")]
    assert rows == [",".join(STEP_COLUMNS), "m,nestedfp_fp16,416,34,16000,35.5", "m,nestedfp_fp8,0,3,600,10.0"]
    (tmp_path / "empty").mkdir()
    assert step_sizes.main([str(tmp_path / "empty"), *given[1:]]) == 2
    assert "expected logs of steps" in capsys.readouterr().err


def logged(folder, runs, **arguments):
    """Steps of an engine, and the tokens of its prompts and answers."""
    payload = {"engines": [{**ENGINE, **arguments}], "runs": runs, "nested": "quantization" in arguments}
    (found,) = run_json("engine_scenario.py", payload, 300.0, {"STEP_LOG_FOLDER": str(folder)})["engines"]
    return steps_of(folder), found


@pytest.mark.engine
def test_an_engine_with_nested_weights_logs_every_step_and_its_precision(tmp_path):
    runs = [{"mode": mode, "prompts": PROMPTS, "max_tokens": 5} for mode in ("fp16", "fp8")]
    worker = "benchmarks.steps.logged_worker.LoggedNestedFPWorker"
    steps, _ = logged(tmp_path, runs, quantization="nestedfp", worker_cls=worker)
    for mode in ("fp16", "fp8"):
        found = [step for step in steps if step.mode == mode]
        assert sum(step.tokens for step in found) == 150 + 3 * 4, "the last token of an answer is not computed on"
        assert max(step.tokens for step in found) <= 64
        assert sum(step.long_requests for step in found) >= 4, "the longest prompt takes two steps"
    # Prompts of 20, 30 and 100 tokens in steps of at most 64, and four more tokens each: what each attends to, added up.
    assert sum(step.kv_tokens for step in steps if step.mode == "fp8") >= sum(range(20, 24)) + sum(range(30, 34))
    assert all(step.kv_tokens >= 0 for step in steps)
    assert all(step.gpu_ms is None for step in steps)
    assert [step.began_s for step in steps] == sorted(step.began_s for step in steps)


@pytest.mark.engine
def test_a_plain_engine_logs_its_steps(tmp_path):
    runs = [{"prompts": PROMPTS, "max_tokens": 5}]
    steps, _ = logged(tmp_path, runs, worker_cls="benchmarks.steps.logged_worker.LoggedPlainWorker")
    assert sum(step.tokens for step in steps) == 150 + 3 * 4
    assert {step.mode for step in steps} == {"fp16"}


def test_a_logging_worker_without_a_folder_says_what_it_needs(monkeypatch):
    monkeypatch.delenv("STEP_LOG_FOLDER", raising=False)
    with pytest.raises(RuntimeError, match="needs STEP_LOG_FOLDER, the folder of its logs; it is not set"):
        log_folder()
