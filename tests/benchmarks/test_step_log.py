"""The log of an engine's steps: a real engine writes it, the simulator's fit reads it.

Run: ``pytest -q tests/benchmarks/test_step_log.py``
"""

import pytest
from processes import ROOT, run_json

from nestedfp.modes import Mode
from simulator.fit.observations import STEP_COLUMNS, read_csv, step_observations

WORKER = "benchmarks.steps.logged_worker.LoggedNestedFPWorker"
ENGINE = {
    "model": str(ROOT / "models" / "fairytales-8m"),
    "dtype": "float16",
    "max_model_len": 256,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 32 << 20,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "quantization": "nestedfp",
    "worker_cls": WORKER,
}
PROMPTS = [{"prompt_token_ids": list(range(300, 300 + tokens))} for tokens in (20, 30, 100)]


@pytest.mark.engine
def test_an_engine_logs_every_step_and_its_precision_for_the_fit(tmp_path):
    runs = [{"mode": mode, "prompts": PROMPTS, "max_tokens": 5} for mode in ("fp16", "fp8")]
    folder = tmp_path / "new"
    run_json(
        "engine_scenario.py",
        {"engines": [ENGINE], "runs": runs, "nested": True},
        300.0,
        {"STEP_LOG_FOLDER": str(folder)},
    )
    (path,) = folder.iterdir()
    log = read_csv(path, STEP_COLUMNS)
    for mode in Mode:
        found = step_observations(log, "fairytales-8m", mode)
        tokens, decodes, kv_tokens, seconds = zip(*found, strict=True)
        assert sum(tokens) == 150 + 3 * 4, "the last token of an answer is not computed on"
        assert max(tokens) <= 64
        assert sum(decodes) == 3 * 4
        # Prompts of 20, 30 and 100 tokens in steps of at most 64, and four more tokens each: what each attends to, added up.
        assert sum(kv_tokens) >= sum(range(20, 24)) + sum(range(30, 34))
        assert all(0 < took_s < 60 for took_s in seconds)
