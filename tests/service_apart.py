"""How ``make test`` shares the files of tests out between its processes (pytest-xdist)."""

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
        files = [path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.serve" in path.read_text()]
        self._service = {path.relative_to(ROOT).as_posix() for path in files}

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "service" if file in self._service else file
