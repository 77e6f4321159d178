"""The live driver with replicas in memory: real clock, real event loop, real followers, no Ray."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from controller_builders import make_snapshot

from controller.config import ControllerConfig
from controller.decide import guards, loop
from controller.fleet import fleet
from controller.live.actor import ControllerActor
from controller.messages import Directive, DirectiveAck
from controller.protocol.follower import DirectiveFollower
from nestedfp.modes import DirectiveMode

FAST = {
    "lease_s": 30.0,  # no pause of this process ends one
    "policy": {"name": "threshold"},
}


@pytest.fixture(autouse=True)
def the_first_snapshot_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "WARM_UP_S", 0.0)
    monkeypatch.setattr(fleet, "WARM_STEPS", 0)


class Replicas:
    """Real followers, each in a standing call that the test can make slow."""

    def __init__(self, *names: str) -> None:
        self.followers = {name: DirectiveFollower(name, *ControllerConfig().lapsed) for name in names}
        self.received: list[Directive] = []
        self.before_taking: Callable[[], Awaitable[None]] | None = None
        self.seq = 0

    async def follow(self, actor: ControllerActor, name: str) -> None:
        ack = seen = None
        while True:
            answer = await actor.next_directive(name, ack, seen)
            ack = None
            if answer is not None:
                if self.before_taking is not None:
                    await self.before_taking()
                seen, directive = answer["token"], Directive.model_validate(answer["directive"])
                self.received.append(directive)
                ack = self.take(name, directive).model_dump(mode="json")

    def take(self, name: str, directive: Directive) -> DirectiveAck:
        return self.followers[name].on_directive(asyncio.get_running_loop().time(), directive)[1]

    async def report(self, actor: ControllerActor, **load: Any) -> None:
        self.seq += 1
        for name, follower in self.followers.items():
            now_s = asyncio.get_running_loop().time()
            now = follower.in_force(now_s)
            snapshot = make_snapshot(
                replica_id=name,
                seq=self.seq,
                epoch=now.epoch,
                directive=now.mode,
                lease_remaining_s=follower.lease_remaining_s(now_s),
                **load,
            )
            await actor.report(snapshot.model_dump(mode="json"))
            await until(lambda follower=follower: follower.epoch > 0)

    def modes(self) -> set[str]:
        now_s = asyncio.get_running_loop().time()
        return {follower.in_force(now_s).mode.value for follower in self.followers.values()}


def drive(
    test: Callable[[ControllerActor, Replicas], Awaitable[None]],
    log_path: Path | None = None,
    config: dict[str, Any] = FAST,
    config_path: Path | None = None,
) -> None:
    async def main() -> None:
        replicas = Replicas("r0", "r1")
        paths = [None if path is None else str(path) for path in (log_path, config_path)]
        actor = ControllerActor(config, *paths)
        calls = [asyncio.create_task(replicas.follow(actor, name)) for name in replicas.followers]
        try:
            await asyncio.wait_for(test(actor, replicas), 10)
        finally:
            for call in calls:
                call.cancel()
            await actor.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_replica_is_told_with_its_first_snapshot_and_one_that_said_nothing_waits() -> None:
    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        stranger = asyncio.create_task(actor.next_directive("r9"))
        await asyncio.sleep(0)
        await actor.report(make_snapshot(replica_id="r9").model_dump(mode="json"))
        answer = await stranger
        assert answer is not None
        assert Directive.model_validate(answer["directive"]).mode is DirectiveMode.FP16

    drive(test)


def test_a_change_is_told_without_waiting_for_reports() -> None:
    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        assert replicas.modes() == {"fp16"}
        await actor.report(make_snapshot(replica_id="r0", seq=99, oldest_wait_s=3.0).model_dump(mode="json"))
        await until(lambda: replicas.modes() == {"fp8"})
        assert replicas.received[-1].reason == "wait_ratio_over_enter"

    drive(test)


def test_an_override_returns_once_all_replicas_have_acknowledged(tmp_path: Path) -> None:
    log_path = tmp_path / "deeper" / "decisions.jsonl"

    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        status = await actor.set_override("fp8", ttl_s=60)
        assert replicas.modes() == {"fp8"}
        assert (status["mode"], status["override"]["mode"]) == ("fp8", "fp8")
        assert 30 < status["override"]["remaining_s"] <= 60
        for replica in status["replicas"]:
            assert (replica["acked"], replica["directive"], replica["epoch"]) == (True, "fp8", status["epoch"])
        assert status["broadcasts"]["count"] > 0
        assert 0 <= status["broadcasts"]["p50_ms"] < 10_000

        status = await actor.set_override("auto")
        assert status["override"] is None
        decisions = await actor.decisions()
        applied = [d for d in decisions if d["outcome"] == "applied"]
        assert [d["reason"] for d in applied if d["to_mode"] == "fp8"] == ["override"]
        assert await actor.decisions(since_id=decisions[-1]["decision_id"]) == []

    drive(test, log_path)
    lines = [json.loads(line) for line in log_path.read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"decision"}
    assert all(line["wall_s"] > 1.7e9 for line in lines)


@pytest.mark.parametrize("ttl_s", [None, 60.0])
def test_the_override_of_the_controller_before_is_in_force_from_the_first_report_on(ttl_s: float | None) -> None:
    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        actor.inherit("fp8", ttl_s)
        await replicas.report(actor)
        await until(lambda: replicas.modes() == {"fp8"})
        override = (await actor.status())["override"]
        assert override["mode"] == "fp8"
        assert (override["remaining_s"] is None) == (ttl_s is None)
        assert ttl_s is None or 50 < override["remaining_s"] <= ttl_s
        await actor.set_override("auto")
        await replicas.report(actor)
        assert (await actor.status())["override"] is None

    drive(test)


@pytest.mark.parametrize(("mode", "ttl_s"), [("fp32", None), ("fp8", -1.0), ("auto", 1.0)])
def test_a_senseless_override_is_refused(mode: str, ttl_s: float | None) -> None:
    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        with pytest.raises(ValueError, match="expected"):
            await actor.set_override(mode, ttl_s)
        assert (await actor.status())["override"] is None

    drive(test)


def test_a_malformed_snapshot_is_refused_by_name_and_the_loop_goes_on() -> None:
    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        for bad in ({**make_snapshot().model_dump(mode="json"), "waiting": -1}, "{", {}):
            with pytest.raises(ValueError, match=r"malformed snapshot:\n\w"):
                await actor.report(bad)
        await replicas.report(actor)
        assert (await actor.status())["step_errors"] == 0

    drive(test)


def test_a_replica_that_hangs_blocks_neither_the_loop_nor_the_next_directive() -> None:
    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        go, entered = asyncio.Event(), []

        async def hang() -> None:
            entered.append(True)
            await go.wait()

        replicas.before_taking = hang
        hanging = asyncio.create_task(actor.set_override("fp8"))
        await until(lambda: len(entered) == 2)
        replicas.before_taking = None
        newer = asyncio.create_task(actor.set_override("fp16"))
        await asyncio.sleep(0.05)
        go.set()
        assert (await newer)["mode"] == (await hanging)["mode"] == "fp16"
        assert replicas.modes() == {"fp16"}

    drive(test)


def test_an_error_in_a_step_is_logged_with_its_traceback_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        good_step = actor._loop.step

        def bad_step(now_s: float) -> Any:
            raise ZeroDivisionError("a fault in a policy")

        actor._loop.step = bad_step  # type: ignore[method-assign]
        while (await actor.status())["step_errors"] < 2:
            await asyncio.sleep(0.005)
        await replicas.report(actor)  # leases are renewed all the same
        actor._loop.step = good_step  # type: ignore[method-assign]
        await actor.report(make_snapshot(replica_id="r0", seq=99, oldest_wait_s=3.0).model_dump(mode="json"))
        await until(lambda: replicas.modes() == {"fp8"})

    drive(test)
    assert caplog.text.count("Traceback") == 1


def test_a_loop_that_was_ended_from_outside_starts_again_with_the_next_report() -> None:
    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        assert actor._stepper is not None
        actor._stepper.cancel()
        await asyncio.wait({actor._stepper})
        await replicas.report(actor, oldest_wait_s=3.0)
        await until(lambda: replicas.modes() == {"fp8"})

    drive(test)


# -- reload ------------------------------------------------------------------------------------------------------------


def service_file(folder: Path, controller: Any) -> Path:
    path = folder / "service.yaml"
    path.write_text(json.dumps({"model": {"id": "m"}, "controller": controller}))
    return path


def test_a_reload_takes_the_file_up_without_a_restart(tmp_path: Path) -> None:
    path = service_file(tmp_path, FAST)

    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        service_file(tmp_path, {**FAST, "policy": {"name": "static_fp8"}})
        status = await actor.reload()
        assert (status["policy"], status["mode"], status["config_loads"]) == ("static_fp8", "fp8", 1)
        await until(lambda: replicas.modes() == {"fp8"})
        assert "reloaded" in {decision["outcome"] for decision in await actor.decisions()}

    drive(test, config_path=path)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"policy": {"name": "thresold"}}, r"controller\.policy\.name: expected one of"),
        ({**FAST, "leese_s": 3}, r"controller\.leese_s: unknown key"),
        ({**FAST, "policy": {"name": "threshold", "wait_ratio": {"enter": 1, "leave": 2}}}, r"expected leave < enter"),
        ([], r"controller: "),
    ],
)
def test_a_bad_file_is_refused_as_a_whole(tmp_path: Path, section: Any, message: str) -> None:
    path = service_file(tmp_path, FAST)

    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        service_file(tmp_path, section)
        before = await actor.status()
        with pytest.raises(ValueError, match=message):
            await actor.reload()
        after = await actor.status()
        assert after["config_error"]
        assert (after["policy"], after["epoch"], after["config_loads"]) == (before["policy"], before["epoch"], 0)
        assert after["step_errors"] == 0

    drive(test, config_path=path)


def test_a_controller_begins_with_what_the_one_before_it_had_reloaded(tmp_path: Path) -> None:
    path = service_file(tmp_path, {**FAST, "policy": {"name": "static_fp8"}})

    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        await until(lambda: replicas.modes() == {"fp8"})
        status = await actor.status()
        assert (status["policy"], status["config_error"]) == ("static_fp8", None)

    drive(test, config={**FAST, "policy": {"name": "static_fp16"}}, config_path=path)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({**FAST, "leese_s": 3}, "controller.leese_s: unknown key"),
        (
            None,
            "expected a mapping",
        ),  # a file that is still being written: a section with no keys would be all defaults
        ("gone", "cannot be read"),
    ],
)
def test_a_controller_whose_file_is_of_no_use_begins_with_what_was_deployed_and_says_so(
    tmp_path: Path, section: Any, message: str
) -> None:
    path = tmp_path / "gone.yaml" if section == "gone" else service_file(tmp_path, section)

    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        status = await actor.status()
        assert status["policy"] == "static_fp8"
        assert message in status["config_error"]
        service_file(tmp_path, FAST).rename(path)
        assert (await actor.reload())["config_error"] is None

    drive(test, config={**FAST, "policy": {"name": "static_fp8"}}, config_path=path)


def test_a_change_of_the_file_is_noticed_where_that_is_wanted(tmp_path: Path) -> None:
    watching = {**FAST, "reload_on_change": True}
    path = service_file(tmp_path, watching)

    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        path.write_text("controller: [")
        os.utime(path, ns=(1, 1))
        while (await actor.status())["config_error"] is None:
            await asyncio.sleep(0.02)
        service_file(tmp_path, {**watching, "policy": {"name": "static_fp8"}})
        os.utime(path, ns=(2, 2))
        while (await actor.status())["policy"] != "static_fp8":
            await asyncio.sleep(0.02)
        assert (await actor.status())["config_error"] is None

    drive(test, config=watching, config_path=path)


def test_a_snapshot_brings_the_next_decision_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STEP_PERIOD_S", 60)

    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        await replicas.report(actor, waiting=10, waiting_tokens=100_000)
        await until(lambda: replicas.modes() == {"fp8"})

    drive(test)
