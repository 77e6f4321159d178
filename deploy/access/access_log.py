"""The access log: a JSON object a line for each request that asked a replica to generate, written when the request has left.

The event loop hands over a tuple and nothing else. A thread makes the line and writes it, so that a slow or hanging disk delays no
token; what it has no room for is dropped and counted. A line holds what the service knows of a request, never the prompt, the
answer or a key. What a client may choose (id, model) is cut.
"""

import atexit
import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from controller.live.decision_log import RotatingLines
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts

log = logging.getLogger(__name__)

LONGEST_VALUE = 128  # characters of what a client chose
WAITING_LINES = 10_000
SAY_DROPPED_EVERY_S = 10.0


class Access(NamedTuple):
    """One request that has left. Times are seconds, latencies milliseconds."""

    wall_s: float  # since 1970, when it left
    id: str | None  # header x-request-id: the client's, or the one that it was given
    key: str | None  # name of the key's holder; None: no keys are configured, or none was right
    model: str | None  # as asked for; None: the request was refused before it was read
    outcome: str  # deploy.metrics.request_metrics.RequestOutcome
    status: int | None  # of the HTTP response; None: there was none
    asked: str  # exact, fast or auto
    precision: str | None  # of the answer: exact, fast or mixed; None: there was none, or the engine never said
    tokens: TokenCounts | None  # None: the engine never said
    ttft_ms: float | None  # from the arrival to the first byte written; None: there was none
    total_ms: float  # from the arrival until the request has left


def line_of(access: Access) -> str:
    """Return a line, a JSON object in ASCII, so that no character ends it; what is not known is null."""
    counts = access.tokens
    tokens = dict.fromkeys(TokenCounts._fields) if counts is None else counts._asdict()
    del tokens["kv_fp8"]  # no count of tokens; the precision tells it
    when = datetime.fromtimestamp(access.wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields = {
        "time": when,
        "id": _cut(access.id),
        "key": access.key,
        "model": _cut(access.model),
        "outcome": access.outcome,
        "status": access.status,
        "asked": access.asked,
        "precision": access.precision,
        **{f"{name}_tokens": value for name, value in tokens.items()},
        "ttft_ms": None if access.ttft_ms is None else round(access.ttft_ms, 1),
        "total_ms": round(access.total_ms, 1),
    }
    return json.dumps(fields, separators=(",", ":"))


def _cut(value: str | None) -> str | None:
    return value if value is None or len(value) <= LONGEST_VALUE else value[:LONGEST_VALUE] + "..."


class AccessLog:
    """Writes lines in a thread of its own.

    Args:
        write: appends a line; called by the thread alone.
        waiting: lines that may wait for the disk.
    """

    def __init__(self, write: Callable[[str], None], waiting: int = WAITING_LINES) -> None:
        self._write = write
        self._queue: queue.Queue[Access | None] = queue.Queue(waiting)
        self.dropped = 0
        self._said_s = -SAY_DROPPED_EVERY_S
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def add(self, access: Access) -> None:
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
