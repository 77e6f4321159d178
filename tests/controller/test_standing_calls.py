"""Replicas that wait for the next directive: who is answered when, and what the controller leaves to the broadcast then."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from controller_builders import make_snapshot

from controller.config import ControllerConfig
from controller.live.actor import ControllerActor
from controller.live.standing_calls import BETWEEN_S, Sent, StandingCalls
from controller.messages import Directive, DirectiveAck
from controller.protocol import DirectiveFollower
from nestedfp.modes import DirectiveMode


def directive(epoch: int) -> Directive:
    return Directive(epoch=epoch, mode=DirectiveMode.FP8, lease_s=2.0, reason="test")


async def waiting(calls: StandingCalls, *replica_ids: str, seen: str | None = None) -> list[asyncio.Task[Sent | None]]:
    tasks = [asyncio.create_task(calls.wait(replica_id, seen)) for replica_id in replica_ids]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def epoch_of(sent: Sent | None) -> int:
    assert sent is not None
    epoch: int = sent.directive["epoch"]
    return epoch


def test_all_who_wait_are_answered_at_once_and_those_who_come_later_with_what_they_have_not_seen() -> None:
    async def main() -> None:
        calls = StandingCalls(hold_s=60)
        tasks = await waiting(calls, "r0", "r1")
        calls.send(directive(1))
        assert [epoch_of(sent) for sent in await asyncio.gather(*tasks)] == [1, 1]
        first = await calls.wait("r2", None)
        assert first is not None
        assert epoch_of(first) == 1
        (task,) = await waiting(calls, "r2", seen=first.token)
        assert not task.done(), "it has seen that one"
        calls.send(directive(2))
        assert epoch_of(await task) == 2
        # Sent while the replica was telling its engine; and the token of a controller that is no more says nothing.
        assert epoch_of(await calls.wait("r0", first.token)) == 2
        other = StandingCalls()
        other.send(directive(7))
        other.send(directive(8))
        second = await other.wait("r0", first.token)
        assert second is not None
        assert epoch_of(second) == 8
        assert epoch_of(await calls.wait("r0", second.token)) == 2

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_call_without_a_directive_ends_and_a_newer_call_of_the_same_replica_ends_it_too() -> None:
    async def main() -> None:
        assert await StandingCalls(hold_s=0.01).wait("r0", None) is None
        calls = StandingCalls(hold_s=60)
        (older,) = await waiting(calls, "r0")
        (newer,) = await waiting(calls, "r0")
        assert await older is None
        calls.send(directive(3))
        assert epoch_of(await newer) == 3

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_controller_that_closes_leaves_nobody_waiting() -> None:
    async def main() -> None:
        actor = ControllerActor({}, "app", "deployment", broadcast=lambda directive: asyncio.sleep(0, []))
        first = await actor.next_directive("r0")
        assert first is not None
        calls = [asyncio.create_task(actor.next_directive(name, None, first["token"])) for name in ("r0", "r1")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await actor.close()
        done, waiting = await asyncio.wait(calls, timeout=0.5)
        assert (len(done), len(waiting)) == (2, 0)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_who_waits_or_has_just_been_answered_is_listening() -> None:
    async def main() -> None:
        now_s = 100.0
        calls = StandingCalls(hold_s=60, clock=lambda: now_s)
        assert calls.listening() == set()
        (r0,) = await waiting(calls, "r0")
        now_s += 1000.0
        assert calls.listening() == {"r0"}, "it waits still"
        calls.send(directive(1))
        await r0
        (r1,) = await waiting(calls, "r1", seen=r0.result().token)  # type: ignore[union-attr]
        now_s += BETWEEN_S
        assert calls.listening() == {"r0", "r1"}
        now_s += 0.1
        assert calls.listening() == {"r1"}
        r1.cancel()  # Ray does so where the caller has gone
        with contextlib.suppress(asyncio.CancelledError):
            await r1
        now_s += BETWEEN_S + 0.1
        assert calls.listening() == set()

    asyncio.run(asyncio.wait_for(main(), 20))


class Replica:
    """A real follower that waits for directives in standing calls."""

    def __init__(self, name: str, actor: ControllerActor) -> None:
        self.name, self.actor = name, actor
        self.follower = DirectiveFollower(name, *ControllerConfig().lapsed)
        self.seq = 0

    async def follow(self) -> None:
        ack = seen = None
        while True:
            answer = await self.actor.next_directive(self.name, ack, seen)
            ack = None
            if answer is not None:
                seen = answer["token"]
                await asyncio.sleep(0.02)  # the engine takes its time
                ack = self.take(Directive.model_validate(answer["directive"])).model_dump(mode="json")

    def take(self, directive: Directive) -> DirectiveAck:
        return self.follower.on_directive(asyncio.get_running_loop().time(), directive)[1]

    async def report(self) -> None:
        self.seq += 1
        now_s = asyncio.get_running_loop().time()
        force = self.follower.in_force(now_s)
        snapshot = make_snapshot(
            replica_id=self.name,
            seq=self.seq,
            epoch=force.epoch,
            directive=force.mode,
            lease_remaining_s=self.follower.lease_remaining_s(now_s),
        )
        self.take(Directive.model_validate(await self.actor.report(snapshot.model_dump(mode="json"))))

    @property
    def mode(self) -> str:
        return self.follower.in_force(asyncio.get_running_loop().time()).mode.value


def drive(test: Callable[[ControllerActor, Replica, Replica, list[int]], Awaitable[Any]]) -> None:
    """``test(actor, r0, r1, broadcast)``: two replicas that have reported once; the epochs that were broadcast."""

    async def main() -> None:
        broadcast: list[int] = []
        replicas: list[Replica] = []

        async def to_all(directive: Directive) -> list[DirectiveAck]:
            broadcast.append(directive.epoch)
            return [replica.take(directive) for replica in replicas]

        actor = ControllerActor({"lease_s": 60.0, "guards": {"warm_up_s": 0}}, "app", "deployment", broadcast=to_all)
        replicas += [Replica(name, actor) for name in ("r0", "r1")]
        try:
            for replica in replicas:
                await replica.report()
            await asyncio.wait_for(test(actor, *replicas, broadcast), 20)  # type: ignore[call-arg]
        finally:
            await actor.close()

    asyncio.run(main())


async def hang_on(*replicas: Replica) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(replica.follow()) for replica in replicas]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_an_order_reaches_replicas_in_their_standing_calls_and_nothing_is_broadcast() -> None:
    async def test(actor: ControllerActor, r0: Replica, r1: Replica, broadcast: list[int]) -> None:
        tasks = await hang_on(r0, r1)
        before = len(broadcast)
        for mode in ("fp8", "fp16", "fp8"):
            status = await actor.set_override(mode)
            assert (r0.mode, r1.mode) == (mode, mode)
            assert all(replica["acked"] for replica in status["replicas"])
            assert (status["broadcast"]["epoch"], status["broadcast"]["replicas"]) == (status["epoch"], 2)
            assert status["standing_calls"] == 2
        assert broadcast[before:] == []
        for task in tasks:
            task.cancel()

    drive(test)


def test_a_replica_without_a_standing_call_gets_the_order_by_broadcast() -> None:
    async def test(actor: ControllerActor, r0: Replica, r1: Replica, broadcast: list[int]) -> None:
        (task,) = await hang_on(r0)
        status = await actor.set_override("fp8")
        assert (r0.mode, r1.mode) == ("fp8", "fp8")
        assert (broadcast[-1], status["standing_calls"]) == (status["epoch"], 1)
        assert all(replica["acked"] for replica in status["replicas"])
        task.cancel()

    drive(test)


def test_an_order_for_one_replica_is_followed_by_it_alone() -> None:
    async def test(actor: ControllerActor, r0: Replica, r1: Replica, broadcast: list[int]) -> None:
        tasks = await hang_on(r0, r1)
        await actor.set_override("fp16")
        await actor.set_override("fp8", replica_id="r1")
        assert (r0.mode, r1.mode) == ("fp16", "fp8")
        for task in tasks:
            task.cancel()

    drive(test)


def test_a_malformed_acknowledgement_is_refused_by_name() -> None:
    async def test(actor: ControllerActor, r0: Replica, r1: Replica, broadcast: list[int]) -> None:
        with pytest.raises(ValueError, match=r"malformed acknowledgement:\nepoch"):
            await actor.next_directive("r0", {"replica_id": "r0", "epoch": -1, "directive": "fp8", "accepted": True})
        assert (await actor.status())["step_errors"] == 0

    drive(test)
