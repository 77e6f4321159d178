"""How ``make test`` shares the files of tests out between its processes (pytest-xdist)."""

import re
from typing import Any

import pytest
from processes import ROOT
from xdist.scheduler import LoadFileScheduling


class ServiceApart(LoadFileScheduling):  # type: ignore[misc]
    """A worker for all files that start the service, one after the other; the rest, a file at a time, is for whoever is free.

    Half of the time of a test of the service passes in waiting, and two services at once would be too much for two cores.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
        self._together = {file: "service" for file, text in texts.items() if "pytest.mark.serve" in text}
        # A minute of compiling, once.
        self._together |= {
            file: "emulator" for file, text in texts.items() if re.search(r"def test_\w+\(build\b", text)
        }

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return self._together.get(file, file)
