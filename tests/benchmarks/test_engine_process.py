"""The two sides of a benchmark of engines: the parent that writes rows, and its child, here one that needs no engine."""

import os
import subprocess
import sys

import pytest
from processes import ROOT

from benchmarks import results_csv

SCRIPT = """
import sys
from pathlib import Path
from benchmarks.engine import engine_process

def measure(spec):
    assert spec["factor"] > 0
    engine_process.info(f"{spec['system']} with {spec['factor']}")
    print("INFO 11-25 12:00:00 [model.py:1] a line of vLLM's log")
    for number in (1, 2):
        engine_process.row(spec["model"], spec["system"], number, number * spec["factor"])

parser = engine_process.parser_of("child", "About.", "llama-8b", Path("unused"))
parser.add_argument("--systems", default="vllm_fp16,nestedfp")
parser.add_argument("--factor", type=int, default=10)
sys.exit(engine_process.main(
    parser, None, measure, ("model", "system", "n", "value"), 3, lambda args: {"factor": args.factor}
))
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "child.py").write_text(SCRIPT)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "child", "--out", str(tmp_path / "rows.csv"), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_every_engine_has_a_process_and_its_rows_are_merged(run, tmp_path):
    done = run()
    assert done.returncode == 0, done.stderr
    run("--systems", "nestedfp", "--factor", "7")
    comments, columns, rows = results_csv.read(tmp_path / "rows.csv")
    assert columns == ["model", "system", "n", "value"]
    assert sorted(rows) == [
        ["llama-8b", "nestedfp", "1", "7"],
        ["llama-8b", "nestedfp", "2", "14"],
        ["llama-8b", "vllm_fp16", "1", "10"],
        ["llama-8b", "vllm_fp16", "2", "20"],
    ]
    assert any("nestedfp with 7" in comment for comment in comments)
    assert not any("vLLM's log" in comment for comment in comments)
    assert done.stderr.count("a line of vLLM's log") == 2


def test_engines_that_fail_leave_no_row_and_a_status(run):
    done = run("--factor", "-1")
    assert done.returncode == 1
    assert "vllm_fp16 on llama-8b ended with 1" in done.stderr
    assert "nestedfp on llama-8b ended with 1" in done.stderr
