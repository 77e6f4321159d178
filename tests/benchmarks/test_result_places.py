"""Where benchmarks write and what they read lies where the repository has it."""

import ast
from pathlib import Path

import pytest
from processes import ROOT

FILES = sorted(path for path in (ROOT / "benchmarks").rglob("*.py") if "__file__" in path.read_text())


def places(file: Path) -> list[Path]:
    """The file's constants that start from its own place."""
    constants = [node.value for node in ast.parse(file.read_text()).body if isinstance(node, ast.Assign)]
    code = [ast.unparse(value) for value in constants if "__file__" in ast.unparse(value)]
    return [eval(each, {"Path": Path, "__file__": str(file)}) for each in code]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_benchmark_reads_or_writes_is_in_a_folder_of_the_repository(file):
    found = places(file)
    assert found
    for path in found:
        assert path.exists() or path.parent in (ROOT / "benchmarks" / "results", ROOT / "csrc/cuda/generated"), path
