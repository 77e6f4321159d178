"""Start a server as a subprocess and stop it again. Contract with ``python -m deploy.serve --config FILE``:

* the environment variable NESTEDFP_ADMIN_KEY carries the key that its admin endpoints accept;
* once it answers requests it prints a line ``ready http://127.0.0.1:PORT after N s`` on standard output or error;
* it exits with 2, and says ``error: ...`` last, where its configuration or what that names cannot be used;
* SIGTERM makes it end. What is left then is killed, with its process group.

Any other OpenAI server is there when it lists its models.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx

from loadtest import REPO_ROOT
from loadtest.errors import InputError, ServiceError
from loadtest.service.target import target_url

ADMIN_KEY_ENV = "NESTEDFP_ADMIN_KEY"
READY = re.compile(r"\bready (http://\S+) after ([0-9.]+) s")
STOP_LIMIT_S = 90.0
POLL_S = 0.2
TAIL_LINES = 20  # of the output that an error may quote
QUOTED_LINES = 5  # where no line of it is known to be the cause
REFUSED = 2
FAULT = "error: "


def serve_command(config: Path) -> list[str]:
    """Command line of the service."""
    return [sys.executable, "-m", "deploy.serve", "--config", str(config.resolve())]


class Started(NamedTuple):
    """A server that runs."""

    url: str  # of its routes
    key: str  # of its admin routes
    process: "subprocess.Popen[bytes]"  # the outermost one


@contextmanager
def started_service(
    command: Sequence[str],
    log_path: Path,
    limit_s: float,
    progress: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    url: str | None = None,
) -> Iterator[Started]:
    """Run a server for the length of the block; ``log_path`` gets its output.

    Args:
        environment: of the server; None: this process's.
        url: of a server that does not say that it is ready.

    Raises:
        InputError: it refuses its configuration.
        ServiceError: it does not start, or another server answers at the URL.
    """
    if url is not None and lists_models(url):
        raise ServiceError(f"another server answers on {url} already; stop it or choose another port")
    given = os.environ if environment is None else environment
    admin_key = given.get(ADMIN_KEY_ENV) if environment is not None else None
    admin_key = admin_key or secrets.token_urlsafe(24)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=REPO_ROOT,
            env={**given, ADMIN_KEY_ENV: admin_key, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which then stops the service
        )
    try:
        yield Started(_wait_ready(process, log_path, limit_s, progress, url), admin_key, process)
    finally:
        progress("stopping the service")
        stop(process, STOP_LIMIT_S)


def stop(process: "subprocess.Popen[bytes]", limit_s: float) -> None:
    """SIGTERM, then, at the latest after ``limit_s``, SIGKILL for what is left of the process group."""
    if process.poll() is None:
        process.terminate()
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: at once
        process.wait(timeout=limit_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=10.0)


def lists_models(url: str) -> bool:
    """Whether a server's models route answers."""
    try:
        return httpx.get(f"{url}/v1/models", timeout=5.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _wait_ready(
    process: "subprocess.Popen[bytes]",
    log_path: Path,
    limit_s: float,
    progress: Callable[[str], None],
    silent_url: str | None,
) -> str:
    began_s = time.monotonic()
    while (waited_s := time.monotonic() - began_s) < limit_s:
        status = process.poll()
        text = log_path.read_text(encoding="utf-8", errors="replace")  # whole, where the process has ended
        if silent_url is not None and lists_models(silent_url):
            return silent_url
        if silent_url is None and (ready := READY.search(text)):
            return target_url(ready[1].replace("//0.0.0.0:", "//127.0.0.1:"))  # listening everywhere includes here
        if status is not None:
            lines = [line.strip()[:200] for line in text.splitlines()]
            if status == REFUSED and (fault := _fault(lines[-TAIL_LINES:])):
                raise InputError(f"{fault}; the service's output is in {log_path}")
            raise ServiceError(
                f"the service ended with exit status {status} before it was ready; "
                f"its output is in {log_path} and ends: {' | '.join(lines[-QUOTED_LINES:]) or '(nothing)'}"
            )
        progress(f"waiting for the service, {waited_s:.0f} s; log: {log_path}")
        time.sleep(POLL_S)
    raise ServiceError(
        f"the service did not print 'ready http://127.0.0.1:PORT after N s' within {limit_s:g} s; "
        f"its output is in {log_path}"
    )


def _fault(lines: Iterable[str]) -> str:
    """The last error in the output, in one line; a configuration's has a line for each wrong key."""
    said: list[str] = []
    for line in lines:
        if line.startswith(FAULT):
            said = [line.removeprefix(FAULT)]
        elif said:
            said.append(line)
    return " | ".join(said).replace(": | ", ": ", 1)  # the line with the file's name ends with the colon
