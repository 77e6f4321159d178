"""Which replica gets a request. Seeded; queue lengths are exact at the moment of the choice.

``p2c`` is Ray Serve's router: two replicas at random, the one with fewer ongoing requests. As in the service, it takes
pinned requests to replicas that run FP16 anyway, where there are any, then to those that choose for themselves.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from nestedfp.modes import DirectiveMode
from simulator.cluster.replica import Replica
from simulator.engine.request import SimRequest

Routing = Literal["p2c", "round_robin"]
Router = Callable[[float, SimRequest, Sequence[Replica]], Replica]
BLOCK = 4096


def make_router(routing: Routing, seed: int) -> Router:
    """A function of time and the replicas that take requests (at least one)."""
    if routing == "round_robin":
        count = -1

        def round_robin(now_s: float, request: SimRequest, replicas: Sequence[Replica]) -> Replica:
            nonlocal count
            count += 1
            return replicas[count % len(replicas)]

        return round_robin

    rng = np.random.default_rng([0x2C, seed])
    draws: list[float] = []

    def p2c(now_s: float, request: SimRequest, replicas: Sequence[Replica]) -> Replica:
        if request.pinned:
            replicas = _for_pinned(replicas)
        if len(replicas) == 1:
            return replicas[0]
        if len(draws) < 2:
            draws.extend(rng.random(BLOCK).tolist())
        first = int(draws.pop() * len(replicas))
        second = (first + 1 + int(draws.pop() * (len(replicas) - 1))) % len(replicas)
        one, other = replicas[first], replicas[second]
        one.engine.advance(now_s)
        other.engine.advance(now_s)
        return one if one.engine.ongoing <= other.engine.ongoing else other

    return p2c


def _for_pinned(replicas: Sequence[Replica]) -> Sequence[Replica]:
    for mode in (DirectiveMode.FP16, DirectiveMode.AUTO):
        group = [replica for replica in replicas if replica.engine.directive is mode]
        if group:
            return group
    return replicas
