"""The controller as Ray Serve starts it here: its status tells what stands in HAProxy on its machine."""

from typing import Any

from controller.live import actor
from deploy import proxy_stats


class ControllerActor(actor.ControllerActor):
    """``controller.live.actor.ControllerActor`` with a probe of HAProxy.

    The probe is not among the arguments: Ray Serve shows those as JSON, to ``serve status`` and to KubeRay, and a function is none.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, proxy_probe=proxy_stats.probe)
