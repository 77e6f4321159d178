"""The access log: a JSON object a line for each request that asked a replica to generate, written when the request has left.

The event loop hands over the fields. A thread makes the line and writes it, so that a slow or hanging disk delays no token; what it
has no room for is dropped and counted. A line holds what the service knows of a request, never the prompt, the
answer or a key. What a client may choose (id, model) is cut.
"""

import atexit
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller.live.decision_log import RotatingLines

log = logging.getLogger(__name__)

LONGEST_VALUE = 128  # characters of what a client chose
WAITING_LINES = 10_000
SAY_DROPPED_EVERY_S = 10.0


def line_of(access: Mapping[str, Any]) -> str:
    """Return a line of ``RequestContext.access``: JSON in ASCII, so that no character ends it; what is not known is null."""
    when = datetime.fromtimestamp(access["time"], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields = {**access, "time": when, "id": _cut(access["id"]), "model": _cut(access["model"])}
    return json.dumps(fields, separators=(",", ":"))


def _cut(value: str | None) -> str | None:
    return value if value is None or len(value) <= LONGEST_VALUE else value[:LONGEST_VALUE] + "..."


class AccessLog:
    """Hands lines to ``write``, in a thread of its own; ``waiting`` lines may wait for the disk."""

    def __init__(self, write: Callable[[str], None], waiting: int = WAITING_LINES) -> None:
        self._write = write
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(waiting)
        self.dropped = 0
        self._said_s = -SAY_DROPPED_EVERY_S
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def add(self, access: Mapping[str, Any]) -> None:
        """Hand a request over; never waits."""
        try:
            self._queue.put_nowait(access)
        except queue.Full:
            self.dropped += 1
            now_s = time.monotonic()
            if now_s - self._said_s >= SAY_DROPPED_EVERY_S:
                self._said_s = now_s
                log.warning("the access log cannot keep up with the requests: %d lines dropped so far", self.dropped)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what waits and end the thread; gives up on a disk that does not answer in time."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (access := self._queue.get()) is not None:
            try:
                self._write(line_of(access))
            except Exception:
                log.exception("a line of the access log was not written")


def open_log(folder: Path, replica: str) -> AccessLog:
    """Return the log of a replica: ``folder/access_<replica>.log``, rotated."""
    opened = AccessLog(RotatingLines(str(folder / f"access_{replica}.log")).write)
    atexit.register(opened.close)
    return opened


def serve_logs() -> Path:
    """Return the folder where Ray Serve keeps this process's logs."""
    from ray.serve._private.logging_utils import get_serve_logs_dir

    return Path(get_serve_logs_dir())
