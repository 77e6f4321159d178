"""Looks at a running service all the time: its status in one thread, its processes in another."""

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.http import http_procs
from benchmarks.http.http_procs import Process

SEVERAL = ("engine", "replica")  # kinds of which each replica has its own
STATUS_ASKERS = 4
STATUS_PERIOD_S = 0.8  # of each of them
PROCESS_PERIOD_S = 0.1
STATUS_LIMIT_S = 7.0  # longer than the control routes wait for the controller, so that their own word is heard


def _is(role: str) -> Callable[[Process], bool]:
    return lambda process: http_procs.role_of(process.command) == role


# The kinds of processes that faults hit.
KINDS: Mapping[str, Callable[[Process], bool]] = {
    "engine": lambda process: process.command.startswith("VLLM::EngineCore"),
    "replica": _is("replica"),
    "controller": _is("controller"),
    "control_routes": _is("control_routes"),
    # Not its launcher, whose command line names it as well.
    "haproxy": lambda process: Path(process.command.split(" ")[0]).name == "haproxy",
    "proxy_manager": _is("proxy"),
    "serve_controller": _is("serve_controller"),
    "gcs": lambda process: "gcs_server" in process.command.split(" ")[0],
}


@dataclass(frozen=True, slots=True)
class StatusLook:
    """One answer to ``GET /status``, when it came."""

    at_s: float
    code: int  # of HTTP; 0: no answer
    ready: frozenset[str]  # replicas that take requests and whose engine goes forward

    def sound(self, replicas: int) -> bool:
        """Whether the service says that it is whole."""
        return self.code == 200 and len(self.ready) >= replicas


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """The service's processes that run, by kind."""

    at_s: float
    alive: Mapping[str, frozenset[int]]

    def whole(self, before: "ProcessLook") -> bool:
        """Whether no kind has fewer processes than before. Of a kind that needs one alone, another may have been on its way out."""
        return all(
            len(self.alive.get(kind, ())) >= (len(pids) if kind in SEVERAL else min(1, len(pids)))
            for kind, pids in before.alive.items()
        )


def running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Family:
    """A service's processes: what descends from the outermost one, ``root``."""

    root: int

    def processes(self) -> list[Process]:
        """Return those that run."""
        return [each for each in http_procs.tree(self.root) if running(each.pid)]

    def look(self) -> ProcessLook:
        """Look at those that faults may hit."""
        found = self.processes()
        alive = {kind: frozenset(each.pid for each in found if wanted(each)) for kind, wanted in KINDS.items()}
        return ProcessLook(time.monotonic(), alive)

    def settled(self) -> bool:
        """Whether a manager of Ray Serve's has an HAProxy."""
        found = self.processes()
        managers = {each.pid for each in found if KINDS["proxy_manager"](each)}
        return any(KINDS["haproxy"](each) and each.parent in managers for each in found)


def look_at_status(url: str) -> StatusLook:
    """Ask a service for its status."""
    code, ready = 0, frozenset[str]()
    try:
        with urllib.request.urlopen(f"{url}/status", timeout=STATUS_LIMIT_S) as answer:
            replicas = json.load(answer)["replicas"]
            code = answer.status
            ready = frozenset(each["id"] for each in replicas if each["ready"] and not each["stale"])
    except urllib.error.HTTPError as error:
        code = error.code
    except (OSError, http.client.HTTPException, ValueError, KeyError):  # cut off, or no status: no answer
        pass
    return StatusLook(time.monotonic(), code, ready)


class Watch:
    """Looks until the end of the block.

    Args:
        url: of the service.
        family: its processes.
    """

    def __init__(self, url: str, family: Family) -> None:
        self._statuses: list[StatusLook] = []
        self._processes: list[ProcessLook] = []
        self._ended = threading.Event()
        # Several ask for the status, so that one that waits for an answer leaves no gap.
        looks: list[tuple[Callable[[], None], float]] = [
            (lambda: self._statuses.append(look_at_status(url)), STATUS_PERIOD_S)
        ] * STATUS_ASKERS
        looks.append((lambda: self._processes.append(family.look()), PROCESS_PERIOD_S))
        self._threads = [threading.Thread(target=self._go_on, args=each, daemon=True) for each in looks]

    def _go_on(self, look: Callable[[], None], period_s: float) -> None:
        while not self._ended.is_set():
            look()
            self._ended.wait(period_s)

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
            self._ended.wait(STATUS_PERIOD_S / STATUS_ASKERS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(STATUS_LIMIT_S + 5)

    @property
    def statuses(self) -> list[StatusLook]:
        """Looks at the status so far, in the order in which answers came."""
        return sorted(list(self._statuses), key=lambda look: look.at_s)

    @property
    def processes(self) -> list[ProcessLook]:
        """Looks at the processes so far."""
        return list(self._processes)

    def sound_for_s(self, replicas: int) -> float:
        """Return for how long all has been well by now: status and processes."""
        statuses, processes = self.statuses, self.processes
        if not statuses or not processes:
            return 0.0
        troubled = [look.at_s for look in statuses if not look.sound(replicas)]
        troubled += [look.at_s for look in processes if not look.whole(processes[0])]
        since_s = max(troubled, default=min(statuses[0].at_s, processes[0].at_s))
        return max(0.0, min(statuses[-1].at_s, processes[-1].at_s) - since_s)
