"""What stands in HAProxy on this machine, read from its admin socket: for the controller's status."""

import asyncio
import csv
import io
import os
from pathlib import Path

from controller.messages import ProxyStats

SOCKET_ENV = "RAY_SERVE_HAPROXY_SOCKET_PATH"
LIMIT_S = 1.0


def count(table: str) -> ProxyStats:
    """Add up the backends' open and waiting requests in HAProxy's answer to ``show stat``.

    Raises:
        ValueError: it is no such answer.
    """
    rows = list(csv.DictReader(io.StringIO(table.removeprefix("# "))))
    if rows and not {"svname", "scur", "qcur"} <= set(rows[0]):
        raise ValueError(f"expected HAProxy's statistics with the columns svname, scur and qcur, got {table[:80]!r}")
    backends = [row for row in rows if row["svname"] == "BACKEND"]
    return ProxyStats(
        sessions=sum(int(row["scur"] or 0) for row in backends), queued=sum(int(row["qcur"] or 0) for row in backends)
    )


async def probe() -> ProxyStats | None:
    """Return the sums over all HAProxies that Ray Serve runs on this machine; None: there is none to ask."""
    path = os.environ.get(SOCKET_ENV)
    if path is None:
        return None
    found = [await _ask(each) for each in Path(path).parent.glob(f"*/{Path(path).name}")]
    if not found:
        return None
    return ProxyStats(sessions=sum(one.sessions for one in found), queued=sum(one.queued for one in found))


async def _ask(path: Path) -> ProxyStats:
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            writer.write(b"show stat\n")
            return count((await reader.read()).decode())
        finally:
            writer.close()
