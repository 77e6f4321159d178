"""Directives that replicas wait for, each in a call of its own: what the controller answers, when, and to whom."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from controller_builders import make_snapshot

from controller.live import delivery
from controller.live.actor import ControllerActor

CONFIG = {"lease_s": 60.0, "policy": {"name": "static_fp16"}}


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RENEW_S", 20.0)


def drive(test: Callable[[ControllerActor], Awaitable[Any]]) -> None:
    """``test(actor)``: r0 and r1 have reported."""

    async def main() -> None:
        actor = ControllerActor(CONFIG)
        try:
            for name in ("r0", "r1"):
                await actor.report(make_snapshot(replica_id=name, epoch=0).model_dump(mode="json"))
            await asyncio.wait_for(test(actor), 20)
        finally:
            await actor.close()

    asyncio.run(main())


async def waiting(actor: ControllerActor, name: str, seen: str | None) -> "asyncio.Task[dict[str, Any] | None]":
    task = asyncio.create_task(actor.next_directive(name, None, seen))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def test_all_who_wait_are_answered_at_once_and_those_who_come_later_with_what_they_have_not_seen() -> None:
    async def test(actor: ControllerActor) -> None:
        first = await actor.next_directive("r0")
        assert first is not None
        calls = [await waiting(actor, name, first["token"]) for name in ("r0", "r1")]
        assert not any(call.done() for call in calls), "they have seen that one"
        ordered = asyncio.create_task(actor.set_override("fp8"))
        told = [await call for call in calls]
        assert [each["directive"]["mode"] for each in told if each is not None] == ["fp8", "fp8"]
        late = await actor.next_directive("r0", None, first["token"])
        assert late is not None
        assert late["token"] != first["token"]
        other = await actor.next_directive("r0", None, "the token of a controller that is no more")
        assert other == late
        ordered.cancel()

    drive(test)


def test_a_call_is_answered_in_time_to_renew_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RENEW_S", 0.02)

    async def test(actor: ControllerActor) -> None:
        first = await actor.next_directive("r0")
        assert first is not None
        assert await actor.next_directive("r0", None, first["token"]) == first

    drive(test)


def test_a_call_that_is_made_again_is_answered_at_once_and_ends_the_one_before() -> None:
    async def test(actor: ControllerActor) -> None:
        first = await actor.next_directive("r0")
        assert first is not None
        lost = await waiting(actor, "r0", first["token"])
        assert await actor.next_directive("r0", None, first["token"]) == first
        assert await lost is None

    drive(test)


def test_a_replica_that_nothing_was_heard_of_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RENEW_S", 0.02)

    async def test(actor: ControllerActor) -> None:
        assert await actor.next_directive("r9") is None

    drive(test)


def test_a_controller_that_closes_leaves_nobody_waiting() -> None:
    async def test(actor: ControllerActor) -> None:
        first = await actor.next_directive("r0")
        assert first is not None
        call = await waiting(actor, "r0", first["token"])
        await actor.close()
        assert await call is None

    drive(test)


def test_a_malformed_acknowledgement_is_refused_by_name() -> None:
    async def test(actor: ControllerActor) -> None:
        with pytest.raises(ValueError, match=r"malformed acknowledgement:\nepoch"):
            await actor.next_directive("r0", {"replica_id": "r0", "epoch": -1, "directive": "fp8"})
        assert (await actor.status())["step_errors"] == 0

    drive(test)
