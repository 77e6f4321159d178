"""What the controller reaches outside: replicas through Ray Serve, and the proxy's statistics.

The only file of this package that imports ray.
"""

import asyncio
import logging
from typing import Any, Protocol

from controller.messages import Directive, DirectiveAck, ProxyStats

log = logging.getLogger(__name__)


class Broadcast(Protocol):
    """The way to all replicas at once. May raise, may return fewer acknowledgements than there are replicas."""

    async def __call__(self, directive: Directive) -> list[DirectiveAck]: ...


class ProxyProbe(Protocol):
    """Reads the statistics of the proxy in front of the replicas. May raise; None when there is no proxy."""

    async def __call__(self) -> ProxyStats | None: ...


def application_of(actor_name: str | None) -> str | None:
    """The Serve application that an actor of a deployment belongs to, from the name that Serve gave it; None: another actor.

    Serve names them SERVE_DEPLOYMENT_ACTOR::application::deployment::version::name. The builder of an application does not
    know under which name it will be deployed, and two of them may run in one cluster.
    """
    parts = (actor_name or "").split("::")
    return parts[1] if parts[0] == "SERVE_DEPLOYMENT_ACTOR" and len(parts) == 5 else None


def own_actor_name() -> str | None:
    """The name of the Ray actor that this runs in; None outside of one. Unlike Ray's own question it starts no Ray."""
    import ray  # here, so that the tests of the actor's logic need not load ray

    inside = ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
    return ray.get_runtime_context().get_actor_name() if inside else None


class ServeBroadcast:
    """Calls ``apply_directive`` on every replica of a Ray Serve deployment.

    Args:
        app_name: the application, unless the name of the actor that this runs in tells it.
        deployment_name: its deployment whose replicas have ``apply_directive``.
        limit_s: seconds that a broadcast may take.
    """

    def __init__(self, app_name: str, deployment_name: str, limit_s: float) -> None:
        from ray import serve  # here, so that the tests of the actor's logic need not load ray

        self._serve = serve
        self._app_name = application_of(own_actor_name()) or app_name
        self._deployment_name = deployment_name
        self._limit_s = limit_s
        self._handle: Any = None

    async def __call__(self, directive: Directive) -> list[DirectiveAck]:
        if self._handle is None:
            self._handle = self._serve.get_deployment_handle(self._deployment_name, self._app_name)
        response = self._handle.broadcast("apply_directive", directive.model_dump(mode="json"))
        # Not its own ``timeout_s``: where it is cancelled itself it leaves the calls unlooked at, and asyncio logs a traceback.
        async with asyncio.timeout(self._limit_s):
            results = await response.results_async(return_exceptions=True)
        acks = []
        for result in results:
            if isinstance(result, BaseException):
                log.warning("a replica did not take directive epoch %d: %r", directive.epoch, result)
            else:
                acks.append(DirectiveAck.model_validate(result))
        return acks
