"""Run one plan in the sender's process (``loadtest.sender.worker``) and follow it. Everything here is plain blocking code."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable

from loadtest import REPO_ROOT
from loadtest.errors import LoadtestError
from loadtest.sender.plan import Event, SendPlan
from workload.records import RequestRecord, read_requests

START_LIMIT_S = 120.0  # imports, and building the bodies of all prompts, on a busy machine
SLACK_S = 30.0  # over the plan's own bound, before the sender is killed
STALE_S = 0.5

Tick = Callable[[float, Event], None]  # (seconds since the start of the run, last event of the sender)


def run_plan(plan: SendPlan, tick: Tick, key: str | None = None) -> tuple[RequestRecord, ...]:
    """Send the requests of the plan; returns one record a request, sorted by index.

    Args:
        tick: called about every half second from the start of the run on: polls the service, shows the progress.
        key: that the service wants with each request. The sender reads it from a pipe, so that it is in no file.
    """
    plan_path = plan.records_path.with_suffix(".plan.json")
    log_path = plan.records_path.with_suffix(".log")
    plan_path.write_text(plan.model_dump_json(), encoding="utf-8")
    try:
        with log_path.open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "loadtest.sender.worker", str(plan_path.resolve())],
                cwd=REPO_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only this process, which then stops the sender
            )
        assert process.stdin, "the sender is started with pipes"
        assert process.stdout
        watchdog = threading.Timer(START_LIMIT_S + plan.bound_s + SLACK_S, process.kill)
        watchdog.start()
        with process:
            try:
                # One that has died says so by its status.
                with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
                    pipe.write(key or "")
                finished = _follow(process.stdout, tick)
            finally:
                process.kill()
                watchdog.cancel()
        if not finished:
            said = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
            raise LoadtestError("; ".join([f"the sender ended early (exit status {process.returncode})", *said]))
    finally:
        plan_path.unlink()
    if not log_path.read_text(encoding="utf-8").strip():
        log_path.unlink()
    return read_requests(plan.records_path)


def _follow(lines: Iterable[str], tick: Tick) -> bool:
    """Tick until the sender says "end"; False when it died before."""
    start_s = 0.0
    for line in lines:
        event, now_s = Event.model_validate_json(line), time.monotonic()
        if event.event == "start":
            start_s = now_s - event.elapsed_s
        # One that has waited for a slow tick has a newer one behind it.
        if event.event == "end" or now_s - start_s - event.elapsed_s < STALE_S:
            tick(now_s - start_s, event)
        if event.event == "end":
            return True
    return False
