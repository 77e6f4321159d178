"""What looks like an overload and is none must not bring FP8, and what is one must, whatever hides it."""

from typing import Any

from control_cluster import Cluster, make_loop

from controller.config import ControllerConfig
from controller.protocol.follower import DirectiveFollower
from nestedfp.modes import DirectiveMode

FP16, FP8 = DirectiveMode.FP16, DirectiveMode.FP8
OVERLOAD = {"tokens_per_s": 3000, "oldest_wait_s": 2.0, "waiting": 20, "waiting_tokens": 9000}
COLD_STEP = {"step_ms_fp16": 600.0, "step_ms_fp8": None}


def entries(cluster: Cluster) -> list[float]:
    return [r.now_s for r in cluster.records if r.to_mode is FP8 and r.from_mode is not FP8]


def test_the_slow_first_steps_of_a_fresh_replica_bring_no_fp8() -> None:
    """A replica that replaces a crashed one gets its first request minutes later: a step of 0.6 s, then ever faster ones."""
    cluster = Cluster(make_loop("threshold")).run(5, tokens_per_s=0, running=0)
    cluster.followers["r1"] = DirectiveFollower("r1", *ControllerConfig().lapsed)
    fresh: dict[str, Any] = {"ready_for_s": 300.0, "tokens_fp16": 0}
    idle = {"running": 0, "tokens_per_s": 0}
    cluster.run(20, **idle, each={"r1": {**fresh, "steps_fp16": 12, "running": 0}})
    for step in range(8):
        first = {**fresh, **COLD_STEP, "steps_fp16": 13 + step, "running": 1, "oldest_wait_s": 0.5, "waiting": 1}
        cluster.run(0.3, **idle, each={"r1": first})
    cluster.run(3, **idle, each={"r1": {**fresh, "steps_fp16": 40, "running": 1, "step_ms_fp16": 20.0}})
    assert entries(cluster) == []


def test_a_lone_replica_that_computes_its_first_requests_is_waited_for() -> None:
    cluster = Cluster(make_loop("threshold"))
    cluster.run(5, tokens_per_s=0, running=0)
    assert cluster.status.last_reason == "below_enter"  # idle: nothing has to be known of it
    cluster.run(1, tokens_per_s=0, **COLD_STEP)
    assert (cluster.status.mode, cluster.status.last_reason) == (FP16, "held_by_warm_up")


def test_a_replica_that_is_slow_for_ten_seconds_is_not_cold_but_overloaded() -> None:
    cluster = Cluster(make_loop("threshold"))
    cluster.run(15, tokens_per_s=0, step_ms_fp16=3000.0, oldest_wait_s=5.0, waiting=30, waiting_tokens=9000)
    assert cluster.modes == {FP8}


def test_a_long_step_does_not_make_an_engine_stuck() -> None:
    cluster = Cluster(make_loop("threshold")).run(5)
    cluster.run(3, stats_age_s=4.0, progress_age_s=4.0, oldest_wait_s=2.0, waiting=20, waiting_tokens=9000)
    assert cluster.modes == {FP8}
