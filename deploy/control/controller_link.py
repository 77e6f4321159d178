"""The replica's ways to its controller, an actor of its deployment: for the event loop, and for a thread beside it."""

import asyncio
from concurrent.futures import Future
from typing import Any

from ray import serve

from deploy.control.controller_lookup import CONTROLLER_ACTOR


class ServeControllerLink:
    """Reaches the controller actor of this deployment; looks it up anew after a failure, because it may be a new one.

    Args:
        replica_id: of the caller.
    """

    def __init__(self, replica_id: str) -> None:
        self._replica_id = replica_id
        self._actor: Any = None
        self._last: Future[Any] | None = None

    async def report(self, snapshot: dict[str, Any]) -> None:
        try:
            actor = self._actor or await asyncio.to_thread(self._found)
            await actor.report.remote(snapshot)
        except BaseException:
            self._actor = None
            raise

    def next_directive(self, ack: dict[str, Any] | None, seen: str | None) -> "Future[dict[str, Any] | None]":
        """Ask for the next directive, for one thread; the answer comes from one of Ray's own threads.

        Raises:
            ValueError: there is no controller at the moment.
        """
        if self._last is not None and not (self._last.done() and self._last.exception() is None):
            self._actor = self._last = None
        self._last = (self._actor or self._found()).next_directive.remote(self._replica_id, ack, seen).future()
        return self._last

    def _found(self) -> Any:
        self._actor = actor = serve.get_deployment_actor(CONTROLLER_ACTOR)
        return actor
