"""Processor time of a service by process, from /proc."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
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
class Process:
    """One line of /proc/<pid>/stat, with the command line."""

    pid: int
    parent: int
    ticks: int  # processor time in user and system mode, all threads
    command: str


def parse_stat(text: str) -> tuple[int, int, str]:
    """Return parent, ticks of processor time and name from /proc/<pid>/stat. The name may hold blanks and brackets."""
    name, rest = text.split("(", 1)[1].rsplit(")", 1)
    fields = rest.split()
    return int(fields[1]), int(fields[11]) + int(fields[12]), name


def role_of(command: str) -> str:
    """Return the part that a process plays, by its command line."""
    return next((role for mark, role in ROLES if mark in command), "other")


def all_processes() -> dict[int, Process]:
    """Return the processes of this machine that can be read."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent, ticks, name = parse_stat((folder / "stat").read_text())
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # gone meanwhile
            continue
        found[int(folder.name)] = Process(int(folder.name), parent, ticks, command or name)
    return found


def descendants(processes: Mapping[int, Process], root: int) -> list[Process]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, open_ = [], [root]
    while open_:
        pid = open_.pop()
        if pid in processes:
            found.append(processes[pid])
            open_ += children.get(pid, [])
    return found


def used_s(before: Iterable[Process], after: Iterable[Process]) -> dict[str, float]:
    """Return seconds of processor time by role between two looks at the same tree."""
    earlier = {process.pid: process.ticks for process in before}
    spent: Counter[str] = Counter()
    for process in after:
        spent[role_of(process.command)] += process.ticks - earlier.get(process.pid, 0)
    return {role: ticks / TICKS_PER_S for role, ticks in spent.items()}


def tree(root: int) -> list[Process]:
    """Return a service's processes as they are now."""
    return descendants(all_processes(), root)


def of_role(root: int, role: str) -> list[int]:
    """Return the processes of a service that play a role, oldest first."""
    return sorted(process.pid for process in tree(root) if role_of(process.command) == role)


def path_s(spent: Mapping[str, float]) -> float:
    """Return what the path cost: everything but the engine."""
    return sum(seconds for role, seconds in spent.items() if role != "engine")
