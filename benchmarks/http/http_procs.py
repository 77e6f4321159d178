"""Processor time of a service by process."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

# What a command line says about a process; the first match counts. Titles of vLLM's and Ray's processes are their own.
ROLES = (
    ("VLLM::", "engine"),
    ("haproxy", "haproxy"),
    ("NestedFPServer", "replica"),
    ("Ingress", "ingress"),
    ("nestedfp-control", "control_routes"),
    ("ray::ControllerActor", "controller"),
    ("nestedfp_controller", "controller"),
    ("ray::ServeReplica", "other_replica"),
    ("ray::HAProxyManager", "proxy"),
    ("ray::ProxyActor", "proxy"),
    ("ray::ServeController", "serve_controller"),
    ("raylet", "ray"),
    ("gcs_server", "ray"),
    ("ray/", "ray"),
    ("ray::", "ray"),
    ("api_server", "api_server"),
    ("deploy.serve", "driver"),
)


@dataclass(frozen=True, slots=True)
class Used:
    """A process, and the processor time that it has used: in user and system mode, by all threads."""

    pid: int
    role: str
    seconds: float


def role_of(command: str) -> str:
    """Return the part that a process plays, by its command line."""
    return next((role for mark, role in ROLES if mark in command), "other")


def tree(root: int) -> list[Used]:
    """Return a service's processes as they are now; none where it has ended."""
    found: list[Used] = []
    if not psutil.pid_exists(root):
        return found
    service = psutil.Process(root)
    for process in (service, *service.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # gone meanwhile
            times = process.cpu_times()
            found.append(Used(process.pid, role_of(" ".join(process.cmdline())), times.user + times.system))
    return found


def used_s(before: Iterable[Used], after: Iterable[Used]) -> dict[str, float]:
    """Return seconds of processor time by role between two looks at the same tree."""
    earlier = {process.pid: process.seconds for process in before}
    spent: Counter[str] = Counter()
    for process in after:
        spent[process.role] += process.seconds - earlier.get(process.pid, 0.0)
    return dict(spent)


def of_role(root: int, role: str) -> list[int]:
    """Return the processes of a service that play a role, oldest first."""
    return sorted(process.pid for process in tree(root) if process.role == role)


def path_s(spent: Mapping[str, float]) -> float:
    """Return what the path cost: everything but the engine."""
    return sum(seconds for role, seconds in spent.items() if role != "engine")
