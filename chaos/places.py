"""At which replica a request was: what HAProxy and the replicas' access logs tell of a service on this machine."""

import contextlib
import csv
import io
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from benchmarks.http import http_procs

LIMIT_S = 2.0
REPLICA = re.compile(r"access_(\w+)\.log$")
FAILED = re.compile(r"^.* outcome=failed .*$", re.MULTILINE)  # a line of the access log as text


def in_flight(folder: str) -> dict[str, int]:
    """Return how many requests HAProxy has at each replica now, by the replica's id.

    Args:
        folder: the service's own, where HAProxy's admin sockets are.
    """
    found: dict[str, int] = {}
    for path in [Path(folder) / "admin.sock", *Path(folder).glob("*/admin.sock")]:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LIMIT_S)
            connection.connect(str(path))
            connection.sendall(b"show stat\n")
            with connection.makefile() as answer:
                for replica, count in sessions(answer.read()).items():
                    found[replica] = found.get(replica, 0) + count
    return found


def sessions(table: str) -> dict[str, int]:
    """Return the open requests of each replica from HAProxy's answer to ``show stat``. Pure.

    A server's name is Serve's name of the replica, SERVE_REPLICA::application#deployment#id, in HAProxy's letters.
    """
    rows = csv.DictReader(io.StringIO(table.removeprefix("# ")))
    return {
        row["svname"].rpartition("-")[2]: int(row["scur"] or 0)
        for row in rows
        if row["svname"].startswith("SERVE_REPLICA")
    }


def replica_of(pid: int) -> str | None:
    """Return the id of the replica that a process is or belongs to, by the access log that it has open; None: of none."""
    found = http_procs.all_processes()
    at: int | None = pid
    while at is not None and at in found:
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            for link in Path(f"/proc/{at}/fd").iterdir():
                if (log := REPLICA.search(os.readlink(link))) is not None:
                    return log[1]
        at = found[at].parent
    return None


def failures(folder: str) -> dict[str, int]:
    """Return how many requests each replica says have failed there, since it was started, by its id.

    Args:
        folder: the service's own, with Ray's session.
    """
    found = {}
    for path in Path(folder).glob("ray/session_latest/logs/serve/access_*.log"):
        if (log := REPLICA.search(path.name)) is not None:
            found[log[1]] = len(FAILED.findall(path.read_text()))
    return found


def since(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return how many more have failed at each replica. Pure."""
    return {replica: count - before.get(replica, 0) for replica, count in after.items()}
