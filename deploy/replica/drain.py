"""The end of a replica's drain: what is still in its engine then ends with an error that says so, and not with a cut.

Ray Serve lets the requests of a replica that leaves go on until ``graceful_shutdown_timeout_s`` is over, and then kills it: streams
break off in the middle, as at a crash. It tells nobody before. So the replica looks at the clock itself, and gives up what it has a
little earlier.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

from deploy.replica.health_routes import GivenUp

log = logging.getLogger(__name__)

LAST_WORDS_S = 2.0  # for the errors to leave in; Ray Serve gets so much more than the drain
AGAIN_S = 0.2  # a request on its way into the engine may have arrived since


class DrainOver(GivenUp):
    """The replica ends, and what was in its engine has been given up."""


def install(give_up: Callable[[Exception], None]) -> None:
    """Have Ray Serve's replica in this process, the only one, do so.

    Args:
        give_up: ends every request that is in the engine with an error.
    """
    from ray.serve._private.replica import Replica

    original = Replica._perform_graceful_shutdown

    @functools.wraps(original)
    async def drained(self: Any) -> None:
        drain_s = self._deployment_config.graceful_shutdown_timeout_s - LAST_WORDS_S
        over = asyncio.create_task(_give_up_after(drain_s, give_up))
        try:
            await original(self)
        finally:
            over.cancel()

    Replica._perform_graceful_shutdown = drained


async def _give_up_after(drain_s: float, give_up: Callable[[Exception], None]) -> None:
    await asyncio.sleep(drain_s)
    log.warning("the time for running requests is over; what is left of them is given up")
    while True:
        give_up(DrainOver("this replica ends, and the time for running requests is over"))
        await asyncio.sleep(AGAIN_S)
