"""The replica's end of a plain engine (``quantization: none``): nobody directs it, but that it hangs is noticed all the same.

A plain engine counts no steps, so any call of it is asked in place of its statistics: it answers between two steps. One that stands
still, or whose step does not end, answers none, and its replica leaves the routing and is replaced like any other.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from controller.config import ControllerConfig
from deploy.agent.agent import EngineCall, ReplicaAgent
from deploy.front.context import PathMeter

ANSWERS_BETWEEN_STEPS = "is_scheduler_paused"  # vLLM's own, and it only reads


class Uncontrolled:
    """The way to a controller where there is none."""

    async def report(self, snapshot: dict[str, Any]) -> None:
        return None

    def next_directive(self, ack: dict[str, Any] | None, seen: str | None) -> "Future[dict[str, Any] | None]":
        raise ConnectionError("a plain engine has no controller")


class PlainAgent(ReplicaAgent):
    """Watches a plain engine.

    Args:
        engine: calls a utility of the engine core by name.
        meter: of the path that the replica's requests take.
        dead: whether the engine has ended.
        give_up: ends every request that is in the engine with an error.
    """

    def __init__(
        self, engine: EngineCall, meter: PathMeter, dead: Callable[[], bool], give_up: Callable[[Exception], None]
    ) -> None:
        nobody = Uncontrolled()
        super().__init__("plain", engine, nobody, nobody.next_directive, ControllerConfig(), None, meter, dead, give_up)

    async def start(self) -> None:
        self._stats_at_s = time.monotonic()
        loops = (self._poll_engine(), self._watch_engine(), self._meter.probe())
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def _statistics(self) -> None:
        await self._engine(ANSWERS_BETWEEN_STEPS)
