"""A service that tests attack and break: what it says of itself, its processes and its logs."""

import collections
import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from live_service import children, demo_config, serve, wait_until

from deploy.startup import leftovers

PORT = 8125
URL = f"http://127.0.0.1:{PORT}"
HANG_S = 120.0  # nothing that is asked of it takes a hundredth of it on a machine of its own


class Poll:
    """Asks for the models all the time, in a thread; what it heard, and the longest that it waited since ``forget``."""

    def __init__(self, every_s: float = 0.1, limit_s: float = 30.0) -> None:
        self.heard: list[tuple[int | str, str]] = []
        self.longest_s = 0.0
        self._every_s, self._limit_s = every_s, limit_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def forget(self) -> None:
        self.longest_s = 0.0

    def _ask(self) -> None:
        with httpx.Client(base_url=URL, timeout=self._limit_s, trust_env=False) as own:
            while not self._ended.wait(self._every_s):
                began_s = time.monotonic()
                try:
                    answer = own.get("/v1/models")
                    self.heard.append((answer.status_code, answer.text))
                except httpx.TransportError as error:
                    self.heard.append((type(error).__name__, ""))
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def __enter__(self) -> "Poll":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def statuses(self) -> dict[int | str, int]:
        return dict(collections.Counter(status for status, _ in self.heard))


@dataclass
class Service:
    """A running service of two replicas."""

    process: "subprocess.Popen[bytes]"  # the start-up command
    start: Poll  # what was heard while it started
    folder: Path  # its logs and its key
    family: set[psutil.Process] = field(default_factory=set)  # all processes that it has had
    memory: set[str] = field(default_factory=set)  # and their shared memory

    def children(self, pattern: str = "") -> list[psutil.Process]:
        """The processes whose name or command line has the pattern."""
        return children(self.process, pattern)

    def engines(self) -> list[psutil.Process]:
        return self.children(r"VLLM::EngineCor")

    def replicas(self) -> list[psutil.Process]:
        return self.children(r"^ray::.*ServeReplica:nestedfp:NestedFPServer")

    def look(self) -> None:
        """Note the processes and what shared memory they have; before some of them are killed."""
        family = self.children()
        self.family |= set(family)
        self.memory |= leftovers.mapped([process.pid for process in family])

    def log_sizes(self) -> dict[Path, int]:
        """How long each of the logs is."""
        found = (path for path in self.folder.rglob("*.*") if path.suffix in (".log", ".err", ".out"))
        return {path: path.stat().st_size for path in found}

    def new_text(self, before: dict[Path, int]) -> dict[Path, str]:
        """What the logs have got since, by file."""
        return {path: path.read_bytes()[before.get(path, 0) :].decode("utf-8", "replace") for path in self.log_sizes()}

    def tracebacks(self, before: dict[Path, int]) -> list[tuple[str, str]]:
        """The first traceback in each log since, with what stands before it."""
        found = {path.name: (text, text.find("Traceback (most")) for path, text in self.new_text(before).items()}
        return [(name, text[max(0, at - 500) : at + 2000]) for name, (text, at) in found.items() if at >= 0]


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Service]:
    """Start the service, and ask it all the while."""
    with contextlib.ExitStack() as stack:
        with Poll() as poll:
            process = stack.enter_context(serve(folder, demo_config(), PORT))
        said = re.search(r"logs in (/tmp/nestedfp-\w+)/", (folder / "log").read_text())
        assert said is not None, "the start-up command says where the logs are"
        service = Service(process, poll, Path(said[1]))
        service.look()
        yield service


def status(client: httpx.Client) -> dict[str, Any]:
    """What /status says, or that there are no replicas."""
    response = client.get("/status")
    found: dict[str, Any] = response.json() if response.status_code == 200 else {"replicas": []}
    return found


def gone(process: psutil.Process) -> bool:
    """Whether a process has ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def two_ready(client: httpx.Client) -> bool:
    """Both replicas report, and HAProxy sends requests to both."""
    with contextlib.suppress(httpx.TransportError):
        ready = {r["id"] for r in status(client)["replicas"] if r["ready"] and not r["stale"]}
        answers = [client.get("/ready") for _ in range(6)]
        asked = {answer.json()["replica"] for answer in answers if answer.status_code == 200}
        return len(ready) == 2 and asked == ready
    return False


def settled(client: httpx.Client) -> None:
    """Wait until both replicas serve."""
    assert wait_until(lambda: two_ready(client), 600, 1.0), client.get("/status").text
