"""What the control room shows, by the time since when: samples of the cluster, decisions, the newest status.

The controller is asked once a second, whoever looks: a page that is opened in an incident shows what came before.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

log = logging.getLogger(__name__)

PERIOD_S = 1.0
SAMPLES_KEPT = 900  # a quarter of an hour
DECISIONS_KEPT = 200
Ask = Callable[..., Awaitable[Any]]  # (method of the controller, *arguments) -> result; raises where there is none
# Of a replica's status; they only grow.
TOTALS = (
    *("answers_exact", "answers_weights_exact", "answers_fast", "answers_mixed", "tokens_fp16", "tokens_fp8"),
    *("slo_evaluated", "within_slo"),
)


class Feed:
    """Follows the controller that ``ask`` asks."""

    def __init__(self, ask: Ask, wall: Callable[[], float] = time.time) -> None:
        self._ask, self._wall = ask, wall
        self._timeline = StatusHistory(SAMPLES_KEPT)
        self._decisions: deque[tuple[float, dict[str, Any]]] = deque(maxlen=DECISIONS_KEPT)  # and when they came
        self._at_s = 0.0
        self._status: dict[str, Any] | None = None
        self._error: str | None = None
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow on the running event loop, unless that is done."""
        if self._following is None or self._following.done():
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Follow no longer."""
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following

    def since(self, wall_s: float) -> dict[str, Any]:
        """Return what has come after the ``at_s`` of an earlier answer; 0: all that is kept.

        ``status`` is None where the controller does not answer, and ``error`` says why.
        """
        return {
            "at_s": self._at_s,
            "wall_s": self._wall(),
            "samples": self._timeline.since(wall_s),
            "decisions": [each for came_s, each in self._decisions if came_s > wall_s],
            "status": self._status,
            "error": self._error,
        }

    async def _follow(self) -> None:
        while True:
            began_s = time.monotonic()
            await self.tick()
            await asyncio.sleep(max(0.0, PERIOD_S - (time.monotonic() - began_s)))

    async def _new_decisions(self) -> list[dict[str, Any]]:
        """Return the decisions since the newest that is known, oldest first."""
        found: list[dict[str, Any]]
        if self._decisions:
            # Asked for that one again: where it is another one now, or gone, all are new. Another controller has started, which
            # counts from 1, or so many have come that this one has forgotten it.
            newest = self._decisions[-1][1]
            found = await self._ask("decisions", newest["decision_id"] - 1)
            if found and found[0] == newest:
                return found[1:]
        found = await self._ask("decisions", 0)
        return found

    async def tick(self) -> None:
        """Ask the controller."""
        try:
            status = await self._ask("status")
            new = await self._new_decisions()
            # Never back, as the clock may be set: a page would get again what it has.
            self._at_s = now_s = max(round(self._wall(), 3), round(self._at_s + 0.001, 3))
            self._timeline.add(now_s, status)
            self._decisions.extend((now_s, each) for each in new)
            self._status, self._error = status, None
        except Exception as error:
            # HTTPException says it in one sentence; anything else is for the log.
            self._status, self._error = None, str(getattr(error, "detail", "the controller does not answer"))
            self._timeline.gap()
            log.debug("no status for the control room: %r", error)


class StatusHistory:
    """The samples of the last while, as many as are ``kept``."""

    def __init__(self, kept: int) -> None:
        self._samples: deque[dict[str, Any]] = deque(maxlen=kept)
        self._totals: dict[str, dict[str, int]] = {}
        self._last_s: float | None = None

    def add(self, wall_s: float, status: Mapping[str, Any]) -> dict[str, Any]:
        """Add what a status says (controller.audit.StatusReport as JSON), and return it. What is not known is None."""
        replicas = status["replicas"]
        totals = {each["id"]: {name: each.get(name) or 0 for name in TOTALS} for each in replicas}
        grown = dict.fromkeys(TOTALS, 0)
        for replica, now in totals.items():
            # A replica that is new here, or whose engine has restarted: its totals are no difference.
            before = self._totals.get(replica)
            if before is not None and all(before[name] <= now[name] for name in TOTALS):
                grown = {name: grown[name] + now[name] - before[name] for name in TOTALS}
        sample = {
            "wall_s": round(wall_s, 3),  # since 1970
            "span_s": None if self._last_s is None else round(wall_s - self._last_s, 3),  # that the totals cover
            "arrivals_per_s": _of(sum, replicas, "arrivals_per_s"),
            "waiting": sum(each["waiting"] for each in replicas),  # requests in the engines' queues
            "running": sum(each["running"] for each in replicas),
            "ttft_p90_ms": _of(max, replicas, "ttft_p90_ms"),  # of the replica that is slowest
            "tpot_p90_ms": _of(max, replicas, "tpot_p90_ms"),
            **grown,  # since the sample before
        }
        self._totals, self._last_s = totals, wall_s
        self._samples.append(sample)
        return sample

    def gap(self) -> None:
        """There was no status: the next sample's totals cover nothing."""
        self._last_s = None
        self._totals = {}

    def since(self, wall_s: float) -> list[dict[str, Any]]:
        """Return the samples that are younger, oldest first."""
        return [each for each in self._samples if each["wall_s"] > wall_s]


def _of(what: Any, replicas: Any, name: str) -> float | None:
    known = [each[name] for each in replicas if each[name] is not None]
    return round(what(known), 2) if known else None
