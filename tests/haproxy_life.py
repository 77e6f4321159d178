"""The processes of an HAProxy that a test runs, and the reload of one by the next, as Ray Serve does it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from deploy.haproxy import launcher


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


@contextlib.contextmanager
def reloaded(folder: Path, first: psutil.Process) -> Iterator[subprocess.Popen[bytes]]:
    """Another HAProxy takes over from the first; yields the process in the place of Ray Serve's manager."""
    command = [str(folder / "haproxy"), *first.cmdline()[1:], "-sf", str(first.pid), "-x", str(folder / "admin.sock")]
    with (folder / "reload.log").open("ab") as log:
        manager = subprocess.Popen(
            # Not this process: a manager is ended with the HAProxy that it started.
            [sys.executable, "-c", f"import subprocess, time; subprocess.run({command!r}); time.sleep(600)"],
            env={**os.environ, **launcher.environment(folder, 2)},
            stdout=log,
            stderr=log,
        )
    try:
        yield manager
    finally:
        manager.kill()
        manager.wait()
        for process in haproxies(folder):
            process.kill()
