"""The controller as Ray Serve starts it here: it knows what stands in HAProxy on its machine, and the controller before it."""

from typing import Any

from controller.live import actor
from controller.live.transport import application_of, own_actor_name
from deploy.control import controller_lookup
from deploy.haproxy import proxy_stats


class ControllerActor(actor.ControllerActor):
    """``controller.live.actor.ControllerActor`` with a probe of HAProxy, and the override that outlives a rolling update.

    An update starts a controller of its own for the new replicas, before the first of them and while the old one lives.

    The probe is not among the arguments: Ray Serve shows those as JSON, to ``serve status`` and to KubeRay, and a function is none.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, proxy_probe=proxy_stats.probe)
        name = own_actor_name()
        if (application := application_of(name)) is None:
            return
        if (override := controller_lookup.standing_override(application, besides=name)) is not None:
            self.inherit(override["mode"], override["remaining_s"])
