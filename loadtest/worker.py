"""``python -m loadtest.worker PLAN.json``: the process that sends the requests, driven by Locust.

A process of its own, because importing Locust replaces the standard library's sockets and threads by gevent's. Standard
output carries ``plan.Event`` lines, one a second; records go to the plan's file as the requests end. Bounded in time
by the plan and in number by its list; ends by itself when its parent is gone.
"""

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import gevent  # type: ignore[import-untyped]
from geventhttpclient import HTTPClient
from locust.env import Environment
from locust.runners import LocalRunner

from loadtest.locustfile import ProbeUser, Sender, TraceUser
from loadtest.plan import Event, Plan
from loadtest.target import loopback_url

LEAD_S = 0.5  # between the end of the preparations and the first arrival
PROGRESS_S = 1.0


def main(plan_path: Path) -> None:
    """Run one plan."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    plan = Plan.model_validate_json(plan_path.read_text(encoding="utf-8"))
    url = urlsplit(loopback_url(plan.url))
    assert url.hostname is not None, "loopback_url refuses a URL without a host"
    environment = Environment(user_classes=[ProbeUser if plan.kind == "closed" else TraceUser], host=plan.url)
    runner = environment.create_local_runner()
    client = HTTPClient(
        url.hostname,
        url.port,
        concurrency=len(plan.requests) + plan.concurrency,  # never the limit
        block_size=65_536,
        connection_timeout=plan.request_timeout_s,
        network_timeout=plan.request_timeout_s,
    )
    gevent.signal_handler(signal.SIGTERM, _stop, runner)
    with plan.records_path.open("w", encoding="utf-8") as records:
        sender = Sender(plan, client, records)
        with contextlib.suppress(OSError), client.request("GET", "/v1/models") as response:
            response.read()  # the first connection of a process is slow: resolver threads, imports
        run = _run_closed if plan.kind == "closed" else _run_open
        run(sender, environment, runner)
    _emit(sender, runner, "end")


def _run_open(sender: Sender, environment: Environment, runner: LocalRunner) -> None:
    plan = sender.plan
    bodies = [sender.body(index) for index in range(len(plan.requests))]  # before the clock starts: it costs CPU
    _start(sender, runner, lead_s=LEAD_S)
    for index, request in enumerate(plan.requests):
        gevent.sleep(max(request.at_s - sender.now_s(), 0))
        TraceUser(environment, sender, index, bodies[index]).start(runner.user_greenlets)
    last_s = max(plan.duration_s, plan.requests[-1].at_s)
    runner.user_greenlets.join(timeout=max(last_s + plan.drain_s - sender.now_s(), 0))
    runner.user_greenlets.kill(block=True)
    sender.record_unsent()


def _run_closed(sender: Sender, environment: Environment, runner: LocalRunner) -> None:
    plan = sender.plan
    ProbeUser.sender = sender
    _start(sender, runner, lead_s=0.0)
    runner.start(plan.concurrency, spawn_rate=plan.concurrency)
    gevent.sleep(plan.duration_s)
    runner.user_greenlets.kill(block=True)


def _start(sender: Sender, runner: LocalRunner, lead_s: float) -> None:
    parent = os.getppid()
    sender.start_s = time.perf_counter() + lead_s
    _emit(sender, runner, "start")

    def progress() -> None:
        while os.getppid() == parent:
            gevent.sleep(PROGRESS_S)
            _emit(sender, runner, "progress")
        os._exit(1)  # nobody reads the results any more

    gevent.spawn(progress)


def _emit(sender: Sender, runner: LocalRunner, event: str) -> None:
    line = Event.model_validate(
        {
            "event": event,
            "elapsed_s": sender.now_s(),
            "sent": sender.sent,
            "in_flight": runner.user_count,
            "done": sender.sent - runner.user_count,
            "errors": sender.errors,
        }
    )
    print(line.model_dump_json(), flush=True)


def _stop(runner: LocalRunner) -> None:
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
