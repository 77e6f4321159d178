"""Where the controllers of a Serve application are. There is one, and two while a rolling update runs."""

import contextlib
import logging
from typing import Any

import ray

CONTROLLER_ACTOR = "nestedfp_controller"
ORDER_TIMEOUT_S = 2.0  # an answer takes milliseconds

log = logging.getLogger(__name__)


def application_of(actor_name: str | None) -> str | None:
    """The Serve application that an actor of a deployment belongs to, from the name that Serve gave it; None: another actor.

    Serve names them SERVE_DEPLOYMENT_ACTOR::application::deployment::version::name. The builder of an application does not
    know under which name it will be deployed, and two of them may run in one cluster.
    """
    parts = (actor_name or "").split("::")
    return parts[1] if parts[0] == "SERVE_DEPLOYMENT_ACTOR" and len(parts) == 5 else None


def own_actor_name() -> str | None:
    """The name of the Ray actor that this runs in; None outside of one. Unlike Ray's own question it starts no Ray."""
    inside = ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
    return ray.get_runtime_context().get_actor_name() if inside else None


def find(application: str, besides: str | None = None) -> list[Any]:
    """Return the actors of the application's controllers, without the one named ``besides``; blocks until Ray's head answers."""
    found = []
    for entry in ray.util.list_named_actors(all_namespaces=True):
        name = entry["name"]
        if application_of(name) != application or not name.endswith(f"::{CONTROLLER_ACTOR}") or name == besides:
            continue
        with contextlib.suppress(ValueError):  # gone since it was listed
            found.append(ray.get_actor(name, namespace=entry["namespace"]))
    return found


def standing_override(application: str, besides: str | None) -> dict[str, Any] | None:
    """Return the override for all replicas that another controller of the application has in force, as its status shows it.

    Blocks for some milliseconds, or ``ORDER_TIMEOUT_S`` for each of them that does not answer. What cannot be learned is logged
    and passed over: a controller without the last order is better than none.
    """
    try:
        others = find(application, besides)
    except ray.exceptions.RayError as error:
        log.warning("Ray does not say whether %s has another controller: %r", application, error)
        return None
    for actor in others:
        try:
            override: dict[str, Any] | None = ray.get(actor.status.remote(), timeout=ORDER_TIMEOUT_S)["override"]
        except (ray.exceptions.RayError, TimeoutError) as error:
            log.warning("another controller of %s does not say what the operator has ordered: %r", application, error)
            continue
        if override is not None:
            return override
    return None
