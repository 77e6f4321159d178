"""The way to the replicas through Ray Serve: a broadcast that takes too long ends, and leaves nothing in the log."""

import asyncio
import gc
import time
from types import SimpleNamespace

import pytest

from controller.live.transport import ServeBroadcast
from controller.messages import Directive
from nestedfp.modes import DirectiveMode

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray Serve's import


@pytest.mark.parametrize("ended_by", ["its limit", "a newer one"])
def test_a_broadcast_that_is_ended_leaves_no_traceback_in_the_log(ended_by):
    from ray.serve.handle import DeploymentBroadcastResponse

    class Replica:
        async def get_async(self):
            await asyncio.Event().wait()

    class Hangs(DeploymentBroadcastResponse):
        """Ray Serve's own, whose replicas do not answer."""

        def __init__(self):
            pass

        async def _fetch_replica_results_async(self):
            return [Replica(), Replica()]

    broadcast = ServeBroadcast("app", "deployment", limit_s=0.2 if ended_by == "its limit" else 60)
    broadcast._handle = SimpleNamespace(broadcast=lambda *args: Hangs())
    logged = []

    async def sent():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context["message"]))
        directive = Directive.model_construct(mode=DirectiveMode.AUTO, epoch=1)
        task = asyncio.create_task(broadcast(directive))
        began_s = time.monotonic()
        while ended_by == "a newer one" and len(asyncio.all_tasks()) < 4:  # this one, the broadcast, and two calls
            await asyncio.sleep(0)
        if ended_by == "a newer one":
            task.cancel()
        with pytest.raises(TimeoutError if ended_by == "its limit" else asyncio.CancelledError):
            await task
        assert time.monotonic() - began_s < 10
        del task
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(sent())
    gc.collect()
    assert not logged
