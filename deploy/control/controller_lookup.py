"""Where the controllers of a Serve application are. There is one, and two while a rolling update runs."""

import contextlib
import logging
from typing import Any

import ray

from controller.live.transport import application_of

CONTROLLER_ACTOR = "nestedfp_controller"
ORDER_TIMEOUT_S = 2.0  # an answer takes milliseconds

log = logging.getLogger(__name__)


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
