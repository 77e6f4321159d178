"""Starts the whole service as a process of its own, for the tests that speak HTTP to it."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from processes import ROOT

from loadtest.service.process import ADMIN_KEY_ENV, serve_command, started_service

START_LIMIT_S = 900.0  # on two cores that others use as well
KEY = "test-key"
MODEL = "fairytales-8m"
ADMIN = {"Authorization": f"Bearer {KEY}"}


@contextlib.contextmanager
def serve(
    folder: Path, config: Mapping[str, Any], port: int, http: Mapping[str, Any] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the service and wait until it is ready; its configuration lies in ``folder / "config.yaml"``."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**config, "http": {"port": port, **(http or {})}}))
    # Traces leave every half a second, in place of every five.
    environment = {**os.environ, ADMIN_KEY_ENV: KEY, "OTEL_BSP_SCHEDULE_DELAY": "500"}
    with started_service(serve_command(path), folder / "log", START_LIMIT_S, lambda _: None, environment) as started:
        assert started.url == f"http://127.0.0.1:{port}"
        yield started.process


def demo_config() -> dict[str, Any]:
    """The shipped configuration with two replicas."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "configs" / "demo-two-replicas.yaml").read_text())
    return config


def wait_until(condition: Callable[[], Any], limit_s: float, pause_s: float = 0.2) -> Any:
    """What ``condition`` returned at last: something true, or after ``limit_s`` false."""
    deadline_s = time.monotonic() + limit_s
    while not (value := condition()) and time.monotonic() < deadline_s:
        time.sleep(pause_s)
    return value


def whole_lines(text: str) -> list[str]:
    """The lines of a file that another process appends to: a reader may find the last one half written."""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def complete(client: httpx.Client, prompt: str = "Once upon a time", **body: Any) -> dict[str, Any]:
    """A completion of eight tokens, or what ``body`` says; it must succeed."""
    response = client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 8, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def children(service: subprocess.Popen[bytes], pattern: str = "") -> list[psutil.Process]:
    """The processes of a service whose name or command line has the pattern."""
    found = []
    for process in psutil.Process(service.pid).children(recursive=True):
        try:
            if re.search(pattern, " ".join(process.cmdline())) or re.search(pattern, process.name()):
                found.append(process)
        except psutil.Error:
            continue
    return found
