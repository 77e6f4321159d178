"""What the controller asks outside: its own name in Ray Serve, and the proxy's statistics.

The only file of this package that imports ray.
"""

from typing import Protocol

from controller.messages import ProxyStats


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
