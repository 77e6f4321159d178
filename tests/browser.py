"""A headless Chromium, driven over its DevTools protocol: opens a page and asks it."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_LIMIT_S = 60.0
ANSWER_LIMIT_S = 60.0


class BrowserMissing(RuntimeError):
    """There is no Chromium on the PATH."""


def binary() -> str:
    """Return Chromium's path.

    Raises:
        BrowserMissing: there is none.
    """
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise BrowserMissing("expected Chromium on the PATH (Debian: apt install chromium)")


class Page:
    """One page of the browser. ``faults`` gathers what its console says: errors, and breaches of its security policy."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._id = 0
        self._session: str | None = None
        self.faults: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result.

        Raises:
            RuntimeError: the browser refused it.
            TimeoutError: the browser did not answer.
        """
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=ANSWER_LIMIT_S))
            if answer.get("id") != self._id:
                self._note(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description") or details["text"])
        if event.get("method") == "Log.entryAdded":
            entry = params["entry"]
            if entry["level"] == "error" and entry["source"] != "network":  # a refused request is no fault of the page
                self.faults.append(entry["text"])

    def look(self, width: int, height: int, phone: bool = False) -> None:
        """Set the size of the screen in CSS pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def open(self, url: str) -> None:
        """Go to an address, and wait until its document is there."""
        failure = self.send("Page.navigate", url=url).get("errorText")
        if failure:
            raise RuntimeError(f"{url}: {failure}")
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, limit_s: float = 30.0) -> Any:
        """Return the expression's value as soon as it is true.

        Raises:
            TimeoutError: it did not become true.
        """
        deadline_s = time.monotonic() + limit_s
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline_s:
                shown = self.evaluate("document.body.innerText")
                raise TimeoutError(
                    f"{expression} was not true within {limit_s:.0f} s; faults of the page: {self.faults}; it shows:\n{shown}"
                )
            time.sleep(0.1)
        return value


@contextlib.contextmanager
def browser_page() -> Iterator[Page]:
    """Start Chromium and yield its only page.

    Raises:
        BrowserMissing: there is no Chromium.
        TimeoutError: it did not start.
    """
    command = [binary(), "--headless=new", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu"]
    command += [
        "--disable-background-networking",
        "--disable-extensions",
        "--no-proxy-server",
        "--disable-dev-shm-usage",
    ]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # Chromium refuses to make one as root
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [*command, f"--user-data-dir={folder}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            with connect(_address(Path(folder), process), proxy=None, max_size=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError, ValueError):
            port, path = (folder / "DevToolsActivePort").read_text().split("\n")[:2]
            return f"ws://127.0.0.1:{int(port)}{path}"
        if process.poll() is not None:
            raise RuntimeError(f"Chromium ended with {process.returncode} before it could be asked")
        time.sleep(0.1)
    raise TimeoutError(f"Chromium did not start within {START_LIMIT_S:.0f} s")
