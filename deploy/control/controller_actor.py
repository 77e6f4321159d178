"""The controller as Ray Serve starts it here: it knows the controller before it."""

from typing import Any

from controller.live import actor
from deploy.control import controller_lookup


class ControllerActor(actor.ControllerActor):
    """``controller.live.actor.ControllerActor`` with the override that outlives a rolling update.

    An update starts a controller of its own for the new replicas, before the first of them and while the old one lives.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        name = controller_lookup.own_actor_name()
        if (application := controller_lookup.application_of(name)) is None:
            return
        if (override := controller_lookup.standing_override(application, besides=name)) is not None:
            self.inherit(override["mode"], override["remaining_s"])
