"""What a restarted controller, a reload and a lease that ran out must not lose: everything that was in force before."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from control_cluster import HOT, Cluster, make_config, make_loop
from controller_builders import make_snapshot
from test_actor import FAST, drive
from test_loop_operation import LADDER

from controller.config import ControllerConfig
from controller.messages import Directive
from controller.protocol.follower import DirectiveFollower
from nestedfp.modes import DirectiveMode

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO


def follower(name: str, config: ControllerConfig | None = None) -> DirectiveFollower:
    return DirectiveFollower(name, *(config or ControllerConfig()).lapsed)


@pytest.mark.parametrize("after_s", [0.0, 3.0])
@pytest.mark.parametrize("policy", ["threshold", "deadlines"])
def test_a_restarted_controller_still_wants_the_replicas_asked_for(policy: str, after_s: float) -> None:
    cluster = Cluster(make_loop(policy, ladder=LADDER), ("r0", "r1")).run(2).run(30, **HOT)
    stated = cluster.last.desired_replicas
    assert stated is not None
    cluster.now_s = round(cluster.now_s + after_s, 6)
    cluster.loop = make_loop(policy, ladder=LADDER)
    cluster.run(0.5, **HOT)
    assert cluster.followers["r0"].latest.desired_replicas == stated


@pytest.mark.parametrize(("policy", "mode"), [("static_fp16", FP16), ("static_fp8", FP8), ("threshold", AUTO)])
def test_the_fallback_is_that_of_the_policy_that_was_reloaded(policy: str, mode: DirectiveMode) -> None:
    cluster = Cluster(make_loop("deadlines")).run(1)
    cluster.carry_out(cluster.loop.reload(cluster.now_s, make_config(policy)))
    cluster.run(1)
    assert cluster.followers["r0"].in_force(cluster.now_s + 10).mode is mode


@pytest.mark.parametrize(("policy", "mode"), [("static_fp16", FP16), ("deadlines", AUTO)])
def test_a_fixed_policy_that_is_reloaded_while_load_is_shed_comes_into_force(policy: str, mode: DirectiveMode) -> None:
    cluster = Cluster(make_loop("threshold", ladder=LADDER)).run(2).run(12, **HOT)
    assert cluster.modes == {FP8}
    cluster.carry_out(cluster.loop.reload(cluster.now_s, make_config(policy, ladder=LADDER)))
    assert cluster.run(20, **HOT).modes == {mode}


def test_after_a_lapse_a_restarted_controller_takes_no_deadlines_away_before_it_has_evidence() -> None:
    cluster = Cluster(make_loop("threshold"), ("r0", "r1")).run(2).run(5, **HOT)
    cluster.now_s = round(cluster.now_s + 3.0, 6)
    assert cluster.modes == {AUTO}  # the fallback
    cluster.loop = make_loop("threshold")
    for _ in range(5):
        assert cluster.run(0.1, tokens_per_s=200, **HOT).modes == {AUTO}
    assert cluster.status.last_reason == "held_by_adoption"
    assert cluster.run(5, **HOT).modes == {FP8}


def test_a_restarted_controller_decides_after_two_seconds_however_long_the_lease() -> None:
    cluster = Cluster(make_loop("threshold", lease_s=30.0), ("r0", "r1")).run(3)
    cluster.loop = make_loop("threshold", lease_s=30.0)
    assert cluster.run(1.5, **HOT).modes == {FP16}
    # Were it to die again now, the replicas would not stay in FP16 without deadlines.
    assert all(follower.latest.fallback.mode is AUTO for follower in cluster.followers.values())
    assert cluster.run(1.5, **HOT).modes == {FP8}


def test_the_first_answer_of_a_restarted_controller_changes_nothing() -> None:
    async def test(actor: Any, replicas: Any) -> None:
        rule = ControllerConfig().lapsed[1]
        snapshot = make_snapshot(replica_id="r7", epoch=7, directive=AUTO, rule=rule, admission_scale=0.3)
        await actor.report(snapshot.model_dump(mode="json"))
        answer = Directive.model_validate((await actor.next_directive("r7"))["directive"])
        assert (answer.mode, answer.rule, answer.admission_scale) == (AUTO, rule, 0.3)

    drive(test, config={**FAST, "ladder": {"shed": True}})


def test_a_file_that_was_half_written_at_the_start_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("controller:\n  policy: {name: sta")

    async def test(actor: Any, replicas: Any) -> None:
        await replicas.report(actor)
        path.write_text(json.dumps({"controller": {**FAST, "policy": {"name": "static_fp8"}}}))
        while (await actor.status())["policy"] != "static_fp8":
            await asyncio.sleep(0.02)

    drive(test, config={**FAST, "policy": {"name": "static_fp16"}}, config_path=path)


def test_a_new_replica_that_speaks_first_does_not_end_the_shedding() -> None:
    cluster = Cluster(make_loop("deadlines", ladder=LADDER), ("r1", "r2")).run(2).run(12, **HOT)
    scale = cluster.last.admission
    assert scale < 1
    cluster.loop = make_loop("deadlines", ladder=LADDER)
    cluster.followers = {"r9": follower("r9"), **cluster.followers}
    assert cluster.run(0.5, **HOT).last.admission == scale


def test_what_is_adopted_respects_the_floor_of_the_new_file() -> None:
    cluster = Cluster(make_loop("threshold", ladder={"shed": True, "shed_after_s": 5})).run(2).run(20, **HOT)
    assert cluster.last.admission < 0.3
    cluster.loop = make_loop("threshold", ladder={"shed": True, "min_admission_scale": 0.5})
    assert cluster.run(1, **HOT).last.admission >= 0.5  # a reload would see to it
