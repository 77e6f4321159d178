"""The benchmark of engines, on a small one."""

import json

import pytest

from benchmarks import results_csv
from benchmarks.engine import engine_offline

ENGINE = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 32 << 20,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "max_model_len": 128,
    "hf_overrides": {"num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 32_000},
}


@pytest.mark.engine
def test_an_engine_has_a_process_its_rows_are_merged_and_one_that_fails_leaves_none_and_a_status(tmp_path, capsys):
    out = tmp_path / "rows.csv"
    words = ["--models", "llama-8b", "--batches", "2,1", "--lengths", "8:4", "--engine", json.dumps(ENGINE)]
    assert engine_offline.main([*words, "--systems", "none,nestedfp", "--out", str(out)]) == 1
    assert "error: none on llama-8b has ended with exit status 1" in capsys.readouterr().err
    comments, columns, rows = results_csv.read(out)
    assert tuple(columns) == engine_offline.COLUMNS
    systems = ("nestedfp_fp16", "nestedfp_fp8")
    assert [row[:6] for row in rows] == [["llama-8b", "", name, str(n), "8", "4"] for name in systems for n in (1, 2)]
    assert all(float(row[6]) > 0 for row in rows)
    assert any("llama-8b nestedfp: ready after" in comment for comment in comments)
