"""Decisions as JSON lines: the latest in memory, all of them in a rotating file. Must not import ray."""

import logging
import logging.handlers
from collections import deque
from pathlib import Path
from typing import Any

from controller.audit import DecisionRecord

MAX_FILE_BYTES = 16 << 20  # after which a new file is begun
FILES_KEPT = 4  # older ones, as ``path.1`` (the newest of them) and so on
DECISIONS_KEPT = 1000  # in memory


class RotatingLines:
    """Appends lines to a file that the standard library rotates, in a folder that is made."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        # The handler alone, without a logger: it brings rotation, and no configuration of logging can divert it.
        self._handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=MAX_FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8"
        )

    def write(self, line: str) -> None:
        """Append a line. A full disk is reported on stderr by ``logging`` and does not raise."""
        self._handler.handle(logging.LogRecord("line", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()


class DecisionLog:
    """Where the actor writes what the loop decided: in memory, and in a file where there is a path."""

    def __init__(self, path: str | None, kept: int = DECISIONS_KEPT) -> None:
        self._decisions: deque[DecisionRecord] = deque(maxlen=kept)
        self._lines = None if path is None else RotatingLines(path)

    def write(self, record: DecisionRecord) -> None:
        """Append a record. A full disk is reported on stderr by ``logging`` and does not raise."""
        self._decisions.append(record)
        if self._lines is not None:
            self._lines.write(record.model_dump_json())

    def since(self, decision_id: int) -> list[dict[str, Any]]:
        """The decisions after ``decision_id`` that are still in memory, oldest first, ready for JSON."""
        return [record.model_dump(mode="json") for record in self._decisions if record.decision_id > decision_id]

    def close(self) -> None:
        """Close the file."""
        if self._lines is not None:
            self._lines.close()
