"""Time from a snapshot to the last of N replicas following: ``python -m benchmarks.control.follow_time --replicas 16``.

The controller, the agents, their standing calls and the engine cores' lines for directives are the live ones; engines only note
what they are told, and Ray's calls are calls between threads. A snapshot that a queue stands in brings FP8, a calm one FP16 again.
One process and one interpreter run all of it: on a machine that is busy otherwise the slowest switches say how busy.
"""

import argparse
import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from controller.config import ControllerConfig
from controller.live.actor import ControllerActor
from deploy.agent.agent import ReplicaAgent
from nestedfp.vllm_plugin.directives.directive_receiver import OPEN, open_line

QUEUE_TOKENS = 100_000
LIMIT_S = 30.0
GUARDS = {"dwell_fp16_s": 0, "dwell_fp8_s": 0, "max_switches_per_minute": 100_000, "warm_up_s": 0}
POLICY = {"name": "threshold", "leave_after_s": 0, "tolerated_share": 0}
COUNTED = (
    *(
        "epoch",
        "switches",
        "steps_fp16",
        "steps_fp8",
        "tokens_fp16",
        "tokens_fp8",
        "waiting",
        "waiting_tokens",
        "running",
    ),
    *("arrivals", "arrived_tokens", "finished"),
)


class TimedEngine:
    """Notes when it was told which mode; one of them can be given a queue."""

    def __init__(self) -> None:
        self.mode, self.epoch, self.told_s = "auto", 0, 0.0
        self.queue_tokens = 0

    async def __call__(self, utility: str, *args: Any) -> Any:
        if utility == OPEN:
            return open_line(self._told, args[0])
        counts = dict.fromkeys(COUNTED, 0) | {"epoch": self.epoch, "waiting_tokens": self.queue_tokens}
        return {"mode": "fp16", "directive": self.mode, "oldest_wait_s": 0.0, "kv_usage": 0.0, **counts}

    def _told(self, directive: dict[str, Any]) -> None:
        self.mode, self.epoch, self.told_s = directive["mode"], directive["epoch"], time.monotonic()


class Link:
    """A replica's way to the controller, which runs on an event loop of its own thread."""

    def __init__(self, name: str, actor: ControllerActor, loop: asyncio.AbstractEventLoop) -> None:
        self._name, self._actor, self._loop = name, actor, loop

    async def report(self, snapshot: dict[str, Any]) -> None:
        await asyncio.wrap_future(self._run(self._actor.report(snapshot)))

    def next_directive(self, ack: dict[str, Any] | None, seen: str | None) -> "Future[dict[str, Any] | None]":
        return self._run(self._actor.next_directive(self._name, ack, seen))

    def _run(self, call: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(call, self._loop)


async def measure(replicas: int, switches: int) -> list[float]:
    """Milliseconds from the moment at which one engine's queue is in a snapshot to the last engine told, for each switch.

    Raises:
        RuntimeError: a replica did not follow within ``LIMIT_S``.
    """
    config = ControllerConfig.model_validate({"policy": POLICY, "guards": GUARDS})
    control = asyncio.new_event_loop()
    thread = threading.Thread(target=control.run_forever, daemon=True)
    thread.start()
    actor = ControllerActor(config)
    engines = [TimedEngine() for _ in range(replicas)]
    agents = []
    for number, engine in enumerate(engines):
        link = Link(f"r{number}", actor, control)
        agents.append(ReplicaAgent(f"r{number}", engine, link, link.next_directive, config))
    await asyncio.gather(*(agent.start() for agent in agents))
    try:
        times_ms = []
        for switch in range(switches):
            mode = "fp16" if switch % 2 else "fp8"
            began_s = await _report(actor, control, agents[0], engines[0], 0 if switch % 2 else QUEUE_TOKENS)
            while not all(engine.mode == mode for engine in engines):
                if time.monotonic() - began_s > LIMIT_S:
                    raise RuntimeError(f"not every replica followed to {mode} within {LIMIT_S:g} s")
                await asyncio.sleep(0.002)
            times_ms.append((max(engine.told_s for engine in engines) - began_s) * 1e3)
            await asyncio.sleep(0.15 + 0.0137 * (switch % 7))  # at any phase of the controller's steps
        return times_ms
    finally:
        await asyncio.gather(*(agent.stop() for agent in agents))
        asyncio.run_coroutine_threadsafe(actor.close(), control).result(LIMIT_S)
        control.call_soon_threadsafe(control.stop)
        thread.join(LIMIT_S)
        control.close()


async def _report(
    actor: ControllerActor, control: asyncio.AbstractEventLoop, agent: ReplicaAgent, engine: TimedEngine, tokens: int
) -> float:
    """Have a replica's next snapshot tell of so long a queue; return when it was sent."""
    engine.queue_tokens = tokens
    began_s = time.monotonic()
    agent._stats = await engine("nestedfp_stats")
    snapshot = agent.snapshot(began_s).model_dump(mode="json")
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(actor.report(snapshot), control))
    return began_s


def main(argv: list[str] | None = None) -> int:
    """Print the times; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control.follow_time", description=__doc__)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--switches", type=int, default=200)
    args = parser.parse_args(argv)
    ordered = sorted(asyncio.run(measure(args.replicas, args.switches)))
    p99 = ordered[round(0.99 * (len(ordered) - 1))]
    print(f"{args.replicas} replicas: p50 {statistics.median(ordered):.1f}, p99 {p99:.1f}, most {ordered[-1]:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
