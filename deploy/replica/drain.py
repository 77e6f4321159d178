"""A replica that leaves: it takes requests until nobody asks it any more, and what is in its engine at the end gets an error.

Ray Serve has it close its listener some seconds after it was told to go, whoever still asks it. An HAProxy on a busy machine may
not have heard by then of the replica that follows, and would refuse its clients. So the listener stays open while requests come.

Ray Serve lets the requests of a replica that leaves go on until ``graceful_shutdown_timeout_s`` is over, and then kills it: streams
break off in the middle, as at a crash. It tells nobody before. So the replica looks at the clock itself, and gives up what it has a
little earlier.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from deploy.replica.health_routes import GivenUp

log = logging.getLogger(__name__)

LAST_WORDS_S = 2.0  # for the errors to leave in; Ray Serve gets so much more than the drain
AGAIN_S = 0.2  # a request on its way into the engine may have arrived since
LOOK_EVERY_S = 0.2
QUIET_S = 2.0  # without a request: everybody knows the replica that follows
# Of the drain, for which the listener stays open beyond Serve's own time at most: what arrives then has the rest to end in, and
# where nothing follows (the service stops) every HAProxy asks to the end.
MORE_SHARE = 0.25


class DrainOver(GivenUp):
    """The replica ends, and what was in its engine has been given up."""


def install(give_up: Callable[[Exception], None], asked: Callable[[], int]) -> None:
    """Have Ray Serve's replica in this process, the only one, do so; ``asked`` tells how many requests have come to it."""
    from ray.serve._private.replica import Replica

    original, closing = Replica._perform_graceful_shutdown, Replica._drain_behind_haproxy

    @functools.wraps(closing)
    async def reachable(self: Any, min_draining_period_s: float) -> None:
        drain_s = self._deployment_config.graceful_shutdown_timeout_s - LAST_WORDS_S
        await _until_quiet(asked, min_draining_period_s, min_draining_period_s + MORE_SHARE * drain_s)
        await closing(self, 0.0)

    @functools.wraps(original)
    async def drained(self: Any) -> None:
        drain_s = self._deployment_config.graceful_shutdown_timeout_s - LAST_WORDS_S
        over = asyncio.create_task(_give_up_after(drain_s, give_up))
        try:
            await original(self)
        finally:
            over.cancel()

    Replica._perform_graceful_shutdown, Replica._drain_behind_haproxy = drained, reachable


async def _until_quiet(asked: Callable[[], int], at_least_s: float, at_most_s: float) -> None:
    """Wait until nothing has been asked for ``QUIET_S``."""
    began_s = time.monotonic()
    known, since_s = asked(), began_s
    while (now_s := time.monotonic()) < began_s + at_most_s:
        if asked() != known:
            known, since_s = asked(), now_s
        if now_s >= max(began_s + at_least_s, since_s + QUIET_S):
            return
        await asyncio.sleep(LOOK_EVERY_S)
    log.warning("this replica was asked until it closed, %.0f s after it was told to leave", at_most_s)


async def _give_up_after(drain_s: float, give_up: Callable[[Exception], None]) -> None:
    await asyncio.sleep(drain_s)
    log.warning("the time for running requests is over; what is left of them is given up")
    while True:
        give_up(DrainOver("this replica ends, and the time for running requests is over"))
        await asyncio.sleep(AGAIN_S)
