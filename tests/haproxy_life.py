"""The processes of an HAProxy that a test runs."""

from pathlib import Path

import psutil


def haproxies(folder: Path) -> list[psutil.Process]:
    """The HAProxies whose files lie in this folder."""
    return [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "haproxy" and any(str(folder) in part for part in process.info["cmdline"] or ())
    ]


def lives(process: psutil.Process) -> bool:
    """Whether a process runs or stands still."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it has ended between the two
        return False
