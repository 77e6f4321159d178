"""The manuals name what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("benchmarks", "controller", "deploy", "loadtest", "nestedfp", "simulator", "workload")
NAMED = re.compile(rf"(?<![\w/])(?:{'|'.join(PACKAGES)})/[A-Za-z0-9_./-]*\.(?:py|json|yaml|csv)\b")


@pytest.mark.parametrize("manual", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_every_file_of_ours_that_a_manual_names_is_there(manual: str) -> None:
    named = set(NAMED.findall((ROOT / "docs" / manual).read_text()))
    assert not {name for name in named if not (ROOT / name).exists()}


def test_the_simulators_manual_names_each_of_its_parts_by_a_path() -> None:
    """A bare file name goes stale without a word when the file moves."""
    text = (ROOT / "docs" / "simulator.md").read_text()
    assert not re.findall(r"`[a-z_]+\.py`", text)
