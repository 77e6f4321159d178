"""``python -m loadtest.sender.worker PLAN.json``: the process that sends the requests, driven by Locust.

A process of its own, because importing Locust replaces the standard library's sockets and threads by gevent's. Standard
input has the key that the service wants, or nothing. Standard output carries ``plan.Event`` lines, two per second; records go
to the plan's file as the requests end. Bounded in time by the plan and in number by its list; ends by itself when its parent
is gone.
"""

import gc
import logging
import os
import sys
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import gevent  # type: ignore[import-untyped]
from locust.env import Environment
from locust.runners import LocalRunner

from loadtest.sender.locustfile import Sender, SendingUser
from loadtest.sender.plan import Event, SendPlan
from loadtest.service.target import addresses, target_url

LEAD_S = 0.5  # between the end of the preparations and the first arrival
PROGRESS_S = 0.5


def main(plan_path: Path) -> None:
    """Run one plan."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    plan = SendPlan.model_validate_json(plan_path.read_text(encoding="utf-8"))
    url = target_url(plan.url, plan.allow_host)
    key = sys.stdin.read() or None
    environment = Environment(user_classes=[SendingUser], host=plan.url)
    runner = environment.create_local_runner()
    with plan.records_path.open("w", encoding="utf-8") as records:
        sender = Sender(plan, addresses(url)[0], urlsplit(url).netloc, records, key)
        run = _run_closed if plan.kind == "closed" else _run_open
        run(sender, environment, runner)
    _emit(sender, runner, "end")


def _run_open(sender: Sender, environment: Environment, runner: LocalRunner) -> None:
    plan = sender.plan
    bodies = [sender.body(index) for index in range(len(plan.requests))]  # before the clock starts: it costs CPU
    _start(sender, runner, lead_s=LEAD_S)
    for index, request in enumerate(plan.requests):
        gevent.sleep(max(request.at_s - sender.now_s(), 0))
        SendingUser(environment, partial(sender.send, index, request.at_s, bodies[index])).start(runner.user_greenlets)
    runner.user_greenlets.join(timeout=max(plan.bound_s - sender.now_s(), 0))
    runner.user_greenlets.kill(block=True)
    sender.record_unsent()


def _run_closed(sender: Sender, environment: Environment, runner: LocalRunner) -> None:
    plan = sender.plan
    _start(sender, runner, lead_s=0.0)
    for _ in range(plan.users):
        SendingUser(environment, sender.send_until_ended).start(runner.user_greenlets)
    gevent.sleep(plan.duration_s - sender.now_s())
    sender.ended.set()
    runner.user_greenlets.kill(block=True)


def _start(sender: Sender, runner: LocalRunner, lead_s: float) -> None:
    parent = os.getppid()
    gc.collect()
    gc.freeze()  # what was imported and prepared is not looked at again: a full collection would stall every stream
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
            "done": max(sender.sent - runner.user_count, 0),
            "errors": sender.errors,
        }
    )
    print(line.model_dump_json(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
