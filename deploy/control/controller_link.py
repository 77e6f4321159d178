"""The replica's way to its controller, an actor of its deployment."""

import asyncio
from typing import Any

from ray import serve

from deploy.control.controller_lookup import CONTROLLER_ACTOR


class ServeControllerLink:
    """Reaches the controller actor of this deployment; looks it up anew after a failure, because it may be a new one."""

    def __init__(self) -> None:
        self._actor: Any = None

    async def report(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Send a snapshot; return the directive that the controller answers with. Raises where there is none, or it does not."""
        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(serve.get_deployment_actor, CONTROLLER_ACTOR)
            directive: dict[str, Any] = await self._actor.report.remote(snapshot)
            return directive
        except BaseException:
            self._actor = None
            raise
