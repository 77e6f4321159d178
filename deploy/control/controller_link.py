"""The replica's way to its controller, an actor of its deployment."""

import asyncio
from typing import Any

from ray import serve

from deploy.control.controller_lookup import CONTROLLER_ACTOR


class ServeControllerLink:
    """Reaches the controller actor of this deployment; looks it up anew after a failure, because it may be a new one."""

    def __init__(self, replica_id: str) -> None:
        self._replica_id = replica_id
        self._actor: Any = None

    async def report(self, snapshot: dict[str, Any]) -> None:
        await self._ask("report", snapshot)

    async def next_directive(self, ack: dict[str, Any] | None, seen: str | None) -> dict[str, Any] | None:
        """Wait for the next directive; raises ``ValueError`` where there is no controller at the moment."""
        return await self._ask("next_directive", self._replica_id, ack, seen)

    async def _ask(self, method: str, *args: Any) -> Any:
        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(serve.get_deployment_actor, CONTROLLER_ACTOR)
            return await getattr(self._actor, method).remote(*args)
        except BaseException:
            self._actor = None
            raise
