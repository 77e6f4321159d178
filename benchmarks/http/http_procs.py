"""The processes of a service, and the processor time that its path from token to client has used."""

import contextlib
from collections.abc import Iterator

import psutil

# What a command line says of a process. Titles of vLLM's and Ray's processes are their own.
ROLES = {"engine": ("VLLM::",), "controller": ("ray::ControllerActor", "nestedfp_controller")}


def tree(root: int) -> Iterator[tuple[psutil.Process, str]]:
    """Yield the processes of a service, oldest first, and the command lines; none where it has ended."""
    if not psutil.pid_exists(root):
        return
    service = psutil.Process(root)
    for process in sorted((service, *service.children(recursive=True)), key=lambda each: each.pid):
        with contextlib.suppress(psutil.Error):  # gone meanwhile
            yield process, " ".join(process.cmdline())


def of_role(root: int, role: str) -> list[int]:
    """Return the processes of a service that play a role, oldest first."""
    return [process.pid for process, command in tree(root) if any(mark in command for mark in ROLES[role])]


def path_s(root: int) -> dict[int, float]:
    """Return the seconds that each process but engines has used, in user and system mode, by all threads."""
    used_s = {}
    for process, command in tree(root):
        if not any(mark in command for mark in ROLES["engine"]):
            with contextlib.suppress(psutil.Error):
                used_s[process.pid] = sum(process.cpu_times()[:2])
    return used_s
