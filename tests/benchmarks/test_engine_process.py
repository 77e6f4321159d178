"""How engine benchmarks run their engines: rows reach the result file one by one."""

import textwrap

from benchmarks import engine_process

CHILD = """
import json, sys
spec = json.loads(sys.argv[2])
print("a line of vLLM's log")
print("INFO " + spec["system"] + " is ready")
for value in (1, 2):
    print("ROW " + json.dumps([spec["model"], spec["system"], value]), flush=True)
sys.exit(spec["status"])
"""


def collect(tmp_path, monkeypatch, status):
    (tmp_path / "child_benchmark.py").write_text(textwrap.dedent(CHILD))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    systems = ["vllm_fp16", "nestedfp"]
    return list(engine_process.collect("child_benchmark", ["llama-8b"], systems, {"status": status}))


def test_rows_come_one_by_one_with_the_notes_of_their_engine(tmp_path, monkeypatch, capsys):
    found = collect(tmp_path, monkeypatch, status=0)
    assert [row for rows, _ in found for row in rows] == [
        ["llama-8b", system, value] for system in ("vllm_fp16", "nestedfp") for value in (1, 2)
    ]
    assert found[0][1] == ["vllm_fp16 is ready"]
    assert found[-1][1] == ["nestedfp is ready"]
    assert capsys.readouterr().err == ""


def test_an_engine_that_fails_is_named_and_the_next_one_runs(tmp_path, monkeypatch, capsys):
    found = collect(tmp_path, monkeypatch, status=3)
    assert len([row for rows, _ in found for row in rows]) == 4
    assert "vllm_fp16 on llama-8b ended with 3" in capsys.readouterr().err
