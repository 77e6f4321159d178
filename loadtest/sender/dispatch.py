"""Run one plan in the sender's process (``loadtest.sender.worker``) and follow it. Everything here is plain blocking code.

The caller's ``tick`` runs about every half second while the run lasts: it polls the service and shows the progress.
"""

import contextlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from loadtest import REPO_ROOT
from loadtest.errors import DispatchError
from loadtest.sender.plan import Event, SendPlan
from workload.records import RequestRecord, read_requests

START_LIMIT_S = 120.0  # imports, and building the bodies of all prompts, on a busy machine
SLACK_S = 30.0  # over the plan's own bound, before the sender is killed
TICK_S = 0.5

Tick = Callable[[float, Event], None]  # (seconds since the start of the run, last event of the sender)


def run_plan(
    plan: SendPlan, tick: Tick, key: str | None = None, ending: threading.Event | None = None
) -> tuple[RequestRecord, ...]:
    """Send the requests of the plan; returns one record a request, sorted by index.

    Args:
        plan: the requests.
        tick: called about every half second.
        key: that the service wants with each request. The sender reads it from a pipe, so that it is in no file.
        ending: set by another thread to begin no more requests; seen at a tick.
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
        with process:
            try:
                _hand_over(process, key)
                finished = _follow(process, plan, _told(process, tick, ending))
            finally:
                process.kill()
        if not finished:
            raise DispatchError(_why(log_path, f"the sender ended early (exit status {process.returncode})"))
    finally:
        plan_path.unlink()
    if not log_path.read_text(encoding="utf-8").strip():
        log_path.unlink()
    return read_requests(plan.records_path)


def _told(process: subprocess.Popen[str], tick: Tick, ending: threading.Event | None) -> Tick:
    def told(elapsed_s: float, event: Event) -> None:
        if ending is not None and ending.is_set():
            process.terminate()
        tick(elapsed_s, event)

    return told


def _hand_over(process: subprocess.Popen[str], key: str | None) -> None:
    assert process.stdin is not None, "the sender is started with a pipe"
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # one that has died already says so by its status
        pipe.write(key or "")


def _follow(process: subprocess.Popen[str], plan: SendPlan, tick: Tick) -> bool:
    """Tick until the sender says "end"; False when it died before."""
    assert process.stdout is not None, "the sender is started with a pipe"
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
    bound_s = plan.bound_s + SLACK_S
    begun_s = time.monotonic()
    started_s: float | None = None
    latest = Event(event="start")
    next_tick_s = begun_s
    while True:
        now_s = time.monotonic()
        limit_s = begun_s + START_LIMIT_S if started_s is None else started_s + bound_s
        if now_s > limit_s:
            raise DispatchError(
                f"the sender did not {'start' if started_s is None else 'end'} within {limit_s - begun_s:.0f} s; "
                "the machine is probably overloaded: use fewer or shorter requests"
            )
        try:
            line = lines.get(timeout=max(next_tick_s - now_s, 0.0) if started_s is not None else TICK_S)
        except queue.Empty:
            next_tick_s = time.monotonic() + TICK_S
            if started_s is not None:
                tick(time.monotonic() - started_s, latest)
            continue
        if line is None:
            return False
        try:
            event = Event.model_validate_json(line)
        except ValidationError as error:
            raise DispatchError(f"expected an event from the sender, got {line[:200]!r}") from error
        if event.event == "start":
            started_s = time.monotonic() - event.elapsed_s
        elif event.event == "end":
            tick(event.elapsed_s, event)
            return True
        latest = event.model_copy(update={"event": "progress"})


def _pump(stdout: IO[str], lines: "queue.Queue[str | None]") -> None:
    for line in stdout:
        lines.put(line)
    lines.put(None)


def _why(log_path: Path, what: str) -> str:
    tail = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
    return "; ".join([what, *tail]) if tail else what
