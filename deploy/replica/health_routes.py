"""``/health`` and ``/ready`` of a replica.

``/health`` says whether the engine goes forward: it answers, and has made a step lately if there was work. ``/ready`` says
besides what was checked before the replica joined: a replica's HTTP server starts only after that, so that whoever gets
an answer here has a replica that passed.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from deploy.front.replies import Refused
from deploy.front.routes.pages import Shown

JSON = "application/json"
DEAD = "its engine has died"


class GivenUp(RuntimeError):
    """What was in the engine has been given up although the engine has not died; the message says why."""


class EngineHung(GivenUp):
    """The engine hangs; the message says for how long."""


@dataclass(frozen=True)
class StartChecks:
    """What was checked at the start.

    Attributes:
        probe_s: how long the engine's answer to a probe took, by precision; empty: a plain engine, which has no precisions.
        self_checks: of every rank: ``nestedfp.vllm_plugin.ranks.self_check.SelfCheck`` as a dictionary.
    """

    probe_s: dict[str, float]
    self_checks: list[dict[str, Any]]


class HealthRoutes:
    """Answers both routes.

    Args:
        replica: its name.
        check: raises where the replica should be replaced; what Serve asks as well.
        age_s: age of the engine's newest statistics, in seconds; None: a plain engine tells none.
        start: what was checked at the start.
    """

    def __init__(
        self,
        replica: str,
        check: Callable[[], Awaitable[None]],
        age_s: Callable[[], float | None],
        start: StartChecks,
    ) -> None:
        self._replica, self._check, self._age_s, self._start = replica, check, age_s, start

    async def health(self) -> Shown:
        """200 while the engine goes forward; raises ``Refused``, 503 with the reason, else."""
        return await self._shown("healthy", {})

    async def ready(self) -> Shown:
        """As ``health``, with what was checked at the start."""
        checked = {"probe_s": self._start.probe_s, "self_checks": self._start.self_checks}
        return await self._shown("ready", checked)

    async def _shown(self, good: str, more: dict[str, Any]) -> Shown:
        try:
            await self._check()
        except Exception as error:
            raise Refused(503, f"replica {self._replica} is not {good}: {error}") from None
        body = {"status": good, "replica": self._replica, "stats_age_s": self._age_s(), **more}
        return Shown(200, JSON, msgspec.json.encode(body))
