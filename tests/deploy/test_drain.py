"""A replica that Ray Serve has leave: it takes requests while they come, and gives up what it has before it is killed."""

import asyncio
import itertools
import time
import warnings
from types import SimpleNamespace

import pytest

from deploy.replica import drain

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's imports
    from ray.serve._private.replica import Replica

    from deploy.startup import local_ray

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

        async def never(self, min_draining_period_s):
            raise AssertionError

        monkeypatch.setattr(Replica, "_perform_graceful_shutdown", rays_own)
        monkeypatch.setattr(Replica, "_drain_behind_haproxy", never)
        drain.install(given_up.append, lambda: 0)
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


@pytest.fixture
def closes_after(monkeypatch):
    """Has a replica with ``drain_s`` leave that is to stay for ``least_s``; when it closed, in seconds, and what it closed with."""

    async def close(drain_s, least_s, asked):
        found = []

        async def rays_own(self, min_draining_period_s):
            found.append((self, min_draining_period_s))

        monkeypatch.setattr(Replica, "_drain_behind_haproxy", rays_own)
        monkeypatch.setattr(Replica, "_perform_graceful_shutdown", rays_own)  # put back after the test
        drain.install(lambda error: None, asked)
        timeout_s = drain_s + drain.LAST_WORDS_S
        replica = SimpleNamespace(_deployment_config=SimpleNamespace(graceful_shutdown_timeout_s=timeout_s))
        began_s = time.monotonic()
        async with asyncio.timeout(NEVER_S):
            await Replica._drain_behind_haproxy(replica, least_s)
        assert found == [(replica, 0.0)], "Serve waits no more, and closes the listener"
        return time.monotonic() - began_s

    monkeypatch.setattr(drain, "QUIET_S", 0.3)
    monkeypatch.setattr(drain, "LOOK_EVERY_S", 0.01)
    return lambda drain_s, least_s, asked: asyncio.run(close(drain_s, least_s, asked))


def test_who_is_not_asked_closes_after_serves_own_time(closes_after):
    assert closes_after(drain_s=4 * NEVER_S, least_s=1.0, asked=lambda: 7) >= 1.0


def test_who_is_asked_stays_open_until_nobody_asks(closes_after):
    began_s, count = time.monotonic(), itertools.count()
    still_s = 1.5  # a request at every look for so long, a second after it was to close

    def asked():
        return next(count) if time.monotonic() - began_s < still_s else -1

    closes_after(drain_s=4 * NEVER_S, least_s=0.5, asked=asked)
    assert time.monotonic() - began_s >= still_s


def test_who_is_asked_for_ever_closes_after_a_quarter_of_the_drain_more(closes_after):
    count = itertools.count()
    took_s = closes_after(drain_s=4.0, least_s=0.5, asked=lambda: next(count))
    assert took_s >= 0.5 + drain.MORE_SHARE * 4.0


@pytest.mark.parametrize("drain_s", [1.0, 20.0, 59.0, 60.0, 100.0, 120.0])
def test_a_stop_of_the_service_waits_for_the_last_words(monkeypatch, clock, drain_s):
    """Serve waits for a minute at a time; a shutdown of Serve ends HAProxy, and with it what is still on its way."""
    gone_s = clock.now_s + local_ray.BEGINS_S + drain_s + drain.LAST_WORDS_S
    shut_down_s = []

    def delete(name):
        until_s = clock.now_s + 60.0
        clock.now_s = max(clock.now_s, min(gone_s, until_s)) + 0.01
        if clock.now_s > until_s:
            raise TimeoutError

    monkeypatch.setattr(local_ray, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(local_ray.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(local_ray.ray, "shutdown", lambda: None)
    monkeypatch.setattr(local_ray.serve, "delete", delete)
    monkeypatch.setattr(local_ray.serve, "shutdown", lambda: shut_down_s.append(clock.now_s))
    local_ray.stop_cluster("app", drain_s)
    assert shut_down_s[0] >= gone_s
