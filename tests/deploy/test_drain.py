"""What a replica does when Ray Serve has it leave: it gives up what it has a little before it would be killed."""

import asyncio
import warnings
from types import SimpleNamespace

import pytest

from deploy.replica import drain

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's imports
    from ray.serve._private.replica import Replica

NEVER_S = 60.0


@pytest.fixture
def leaves(monkeypatch):
    """Has a replica leave that has ``timeout_s`` for it; what its engine was given up with, and how often until its end."""

    async def leave(timeout_s, until):
        given_up = []

        async def rays_own(self):
            assert self is replica
            while not until(given_up):
                await asyncio.sleep(0.01)

        monkeypatch.setattr(Replica, "_perform_graceful_shutdown", rays_own)
        drain.install(given_up.append)
        replica = SimpleNamespace(_deployment_config=SimpleNamespace(graceful_shutdown_timeout_s=timeout_s))
        async with asyncio.timeout(NEVER_S):
            await Replica._perform_graceful_shutdown(replica)
        ended = len(given_up)
        await asyncio.sleep(3 * drain.AGAIN_S)
        assert len(given_up) == ended, "nothing goes on after the end"
        return given_up

    return lambda timeout_s, until: asyncio.run(leave(timeout_s, until))


def test_what_is_in_the_engine_when_the_drain_is_over_is_given_up_and_what_arrives_then_too(leaves):
    given_up = leaves(drain.LAST_WORDS_S + 0.05, until=lambda given_up: len(given_up) >= 2)
    assert {type(error) for error in given_up} == {drain.DrainOver}
    assert str(given_up[0]) == "this replica ends, and the time for running requests is over"


def test_nothing_is_given_up_while_there_is_time(leaves):
    looks = iter(range(20))
    assert leaves(drain.LAST_WORDS_S + NEVER_S, until=lambda _: next(looks, None) is None) == []
