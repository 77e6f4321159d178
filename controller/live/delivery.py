"""How a directive reaches every replica, and when all have it: standing calls, a broadcast to the rest, acknowledgements."""

import asyncio
import logging
import time
from collections import deque
from typing import Any

from controller.audit import BroadcastRecord, BroadcastStats
from controller.decide.loop import ControlLoop
from controller.live.decision_log import DecisionLog
from controller.live.quiet import Quiet
from controller.live.recording import RecordingLoop
from controller.live.standing_calls import Sent, StandingCalls
from controller.live.transport import Broadcast
from controller.messages import Directive

log = logging.getLogger(__name__)

CANNOT_REACH_EVERY_S = 10.0
BROADCASTS_KEPT = 1000  # whose times the status summarises


class Delivery:
    """Sends directives, on one event loop.

    Args:
        loop: knows the replicas and takes their acknowledgements.
        broadcast: the way to replicas that have no standing call.
        decision_log: in which it is written how long a directive took to reach all.
        quiet: says how often the log may complain.
    """

    def __init__(
        self, loop: ControlLoop | RecordingLoop, broadcast: Broadcast, decision_log: DecisionLog, quiet: Quiet
    ) -> None:
        self._loop, self._broadcast, self._log, self._quiet = loop, broadcast, decision_log, quiet
        self._calls = StandingCalls()
        self._all_acked = asyncio.Event()  # the newest directive, by every replica
        self._sends: set[asyncio.Task[None]] = set()
        self._converged: BroadcastRecord | None = None
        self._ack_ms: deque[float] = deque(maxlen=BROADCASTS_KEPT)

    async def awaited(self, replica_id: str, seen: str | None) -> Sent | None:
        """Return what is sent to a replica next, or has been sent since it saw something: its standing call."""
        return await self._calls.wait(replica_id, seen)

    def send(self, directive: Directive, limit_s: float) -> asyncio.Task[None]:
        """Begin to send; the task ends when every replica has acknowledged, or after the limit. Never waits."""
        self._calls.send(directive)
        task = asyncio.get_running_loop().create_task(self._send(directive, limit_s))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)
        return task

    def note_converged(self) -> None:
        """Write how long a directive took to reach every replica, once per epoch; to be called after each acknowledgement."""
        converged = self._loop.converged()
        if converged is not None:
            self._all_acked.set()
        if converged is None or (self._converged is not None and self._converged.epoch == converged[0].epoch):
            return
        directive, replicas, after_s = converged
        self._converged = BroadcastRecord(
            wall_s=time.time(),
            epoch=directive.epoch,
            mode=directive.mode,
            replicas=replicas,
            last_ack_ms=after_s * 1e3,
        )
        self._ack_ms.append(self._converged.last_ack_ms)
        self._log.write(self._converged)

    def listening(self) -> set[str]:
        """Return the replicas that are told at once: they have a standing call."""
        return self._calls.listening() & self._loop.replica_ids

    def status(self) -> dict[str, Any]:
        """Fields of a ``StatusReport``."""
        return {
            "broadcast": self._converged,
            "broadcasts": _statistics(self._ack_ms),
            "standing_calls": len(self.listening()),
        }

    async def close(self) -> None:
        """Stop sending, and answer the calls that wait."""
        tasks = list(self._sends)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._calls.close()

    async def _send(self, directive: Directive, limit_s: float) -> None:
        """Broadcast to those who do not wait for it in a standing call; return when every replica has acknowledged."""
        try:
            async with asyncio.timeout(limit_s):
                known = self._loop.replica_ids
                if known and known <= self._calls.listening():
                    await self._acknowledged()
                    return
                acks = await self._broadcast(directive)
        except Exception as error:
            # Not an error of ours: replicas catch up from the answer to their next snapshot.
            if self._quiet.may_say("broadcast", CANNOT_REACH_EVERY_S):
                log.warning("directive epoch %d could not be broadcast: %r", directive.epoch, error)
            return
        now_s = time.monotonic()
        for ack in acks:
            self._loop.on_ack(now_s, ack)
        self.note_converged()

    async def _acknowledged(self) -> None:
        """Wait until every replica has acknowledged the newest directive."""
        while self._loop.converged() is None:
            self._all_acked.clear()
            await self._all_acked.wait()


def _statistics(last_ack_ms: deque[float]) -> BroadcastStats:
    """Percentiles by nearest rank."""
    if not last_ack_ms:
        return BroadcastStats()
    ordered = sorted(last_ack_ms)
    last = len(ordered) - 1
    return BroadcastStats(count=len(ordered), p50_ms=ordered[round(0.5 * last)], p99_ms=ordered[round(0.99 * last)])
