"""Bodies of requests come within bounds of size, time and memory."""

import asyncio
import time

import pytest

from deploy.front.checks import requests
from deploy.front.checks.requests import MOST_AT_ONCE, Bodies
from deploy.front.replies import OVERLOADED, Refused


def refusal(call, *args, **kwargs):
    with pytest.raises(Refused) as caught:
        call(*args, **kwargs)
    return caught.value


def reading(*messages, limit=100):
    waiting = iter(messages)

    async def receive():
        return next(waiting)

    return asyncio.run(Bodies(limit).read(receive))


def test_a_body_comes_in_one_piece_or_in_several():
    assert reading({"type": "http.request", "body": b"abc"}) == b"abc"
    parts = [{"type": "http.request", "body": part, "more_body": True} for part in (b"a", b"", b"bc")]
    assert reading(*parts, {"type": "http.request"}) == b"abc"


def test_a_body_without_an_announced_length_is_refused_as_soon_as_it_is_too_long():
    endless = ({"type": "http.request", "body": b"x" * 60, "more_body": True} for _ in range(10))
    error = refusal(reading, *endless)
    assert (error.status, "larger than 100 bytes" in str(error)) == (413, True)


def test_a_client_that_leaves_in_its_body_is_no_request():
    assert (
        refusal(reading, {"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}).status
        == 400
    )


def test_a_body_that_trickles_is_let_go(monkeypatch):
    monkeypatch.setattr(requests, "BODY_S", 0.05)

    async def trickle():
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    assert refusal(asyncio.run, Bodies(1 << 20).read(trickle)).status == 408


def test_bodies_that_never_end_do_not_take_the_memory():
    async def scenario():
        reader, ended = Bodies(100), asyncio.Event()

        def half_sent():
            pieces = iter((b"x" * 50, b"x" * 50))

            async def receive():
                if (piece := next(pieces, None)) is None:
                    await ended.wait()
                return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

            return receive

        async def one_more():
            return {"type": "http.request", "body": b"y"}

        held = [asyncio.create_task(reader.read(half_sent())) for _ in range(MOST_AT_ONCE)]
        await asyncio.sleep(0)  # each has read all that there is
        with pytest.raises(Refused) as caught:
            await reader.read(one_more)
        assert (caught.value.status, caught.value.cause) == (503, OVERLOADED)
        held[0].cancel()
        await asyncio.wait([held[0]])
        assert await reader.read(one_more) == b"y", "what a client that left had sent counts no more"
        ended.set()
        assert await asyncio.gather(*held[1:]) == [b"x" * 100] * (MOST_AT_ONCE - 1)
        assert reader._held_bytes == 0

    asyncio.run(scenario())


def test_large_bodies_are_parsed_one_at_a_time_and_small_ones_at_once():
    bodies, large = Bodies(1 << 20), requests.SMALL_BYTES + 1
    order, before_it = [], []

    async def parse(size, takes_s):
        async with bodies.parsing(size):
            time.sleep(takes_s)  # holds the loop
            order.append(size)

    async def small():
        parsed = len(order)
        for _ in range(5):
            await asyncio.sleep(0)
        await parse(10, 0)
        before_it.append(len(order) - 1 - parsed)

    async def everybody():
        first = asyncio.create_task(parse(large + 9, 0.05))
        await asyncio.sleep(0)
        leaves = asyncio.create_task(parse(large + 1, 0.05))
        rest = [asyncio.create_task(parse(large + size, 0.05)) for size in (7, 3, 5, 3)]
        await asyncio.sleep(0)
        leaves.cancel()
        for _ in range(5):
            await small()
            await asyncio.sleep(0.02)
        await asyncio.gather(first, *rest)
        await parse(large, 0)

    asyncio.run(everybody())
    assert [size - large for size in order if size > 10] == [9, 7, 3, 5, 3, 0]
    assert max(before_it) <= 1, "one of them at most comes before it"
