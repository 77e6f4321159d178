"""The control loop while it runs: overrides by replica, the ladder, reloads.

What it makes of loads, bad input and restarts: test_loop.py.
"""

import pytest
from control_cluster import HOT, Cluster, make_config, make_loop

from controller.audit import DecisionOutcome, Rung
from controller.config import ControllerConfig
from nestedfp.modes import DirectiveMode

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO


# -- overrides by replica ----------------------------------------------------------------------------------------------


# -- ladder in the loop ------------------------------------------------------------------------------------------------

LADDER = {"shed": True, "scale": True, "max_replicas": 8, "shed_after_s": 5, "scale_after_s": 10}


def test_the_ladder_reaches_the_replicas_the_effects_the_status_and_the_log() -> None:
    cluster = Cluster(make_loop(ladder=LADDER), ("r0", "r1")).run(2).run(30, **HOT)
    assert cluster.last.admission < 1.0
    assert {follower.in_force(cluster.now_s).admission_scale for follower in cluster.followers.values()} == {
        cluster.last.admission
    }
    assert cluster.last.desired_replicas is not None
    assert cluster.last.desired_replicas > 2
    assert (cluster.status.rung, cluster.status.fp8_insufficient) == (Rung.SCALE, True)
    assert [r.reason for r in cluster.records][:3] == ["start_in_fp16", "wait_ratio_over_enter", "shed_more"]
    assert (cluster.records[2].rung, cluster.records[2].admission_scale) == (Rung.SHED, 0.8)
    assert "scale_up" in [r.reason for r in cluster.records]
    cluster.run(60)
    assert cluster.modes == {FP8}, "precision comes back last"
    assert cluster.status.last_reason == "held_by_ladder"
    cluster.run(600)
    assert (cluster.modes, cluster.last.admission, cluster.last.desired_replicas) == ({FP16}, 1.0, None)
    assert cluster.status.rung is Rung.NONE


@pytest.mark.parametrize(("policy", "mode"), [("threshold", FP8), ("deadlines", AUTO)])
def test_a_restarted_controller_goes_on_shedding(policy: str, mode: DirectiveMode) -> None:
    cluster = Cluster(make_loop(policy, ladder=LADDER)).run(2).run(12, **HOT)
    scale = cluster.last.admission
    assert scale < 1.0
    cluster.loop = make_loop(policy, ladder=LADDER)
    cluster.run(0.5, **HOT)
    assert cluster.last.admission == scale
    assert cluster.modes == {mode}


# -- reload ------------------------------------------------------------------------------------------------------------


def test_a_reload_that_changes_no_content_keeps_the_epoch() -> None:
    cluster = Cluster(make_loop()).run(2)
    epoch = cluster.status.epoch
    cluster.carry_out(cluster.loop.reload(cluster.now_s, make_config("threshold", slo={"ttft_ms": 900})))
    assert (cluster.status.epoch, cluster.status.policy, cluster.status.config_loads) == (epoch, "threshold", 1)
    assert cluster.notes[-1].outcome is DecisionOutcome.RELOADED
    # The objectives travel with the directive, so that replicas judge requests by the new ones.
    assert cluster.loop.directive_for("r0").slo.ttft_ms == 900


def test_a_reload_ends_no_fp8_before_its_time_and_keeps_an_override() -> None:
    cluster = Cluster(make_loop()).run(2).run(1, **HOT)
    other = ControllerConfig.model_validate({"policy": {"name": "threshold", "leave_after_s": 19}})
    cluster.carry_out(cluster.loop.reload(cluster.now_s, other))
    cluster.run(5)
    assert (cluster.modes, cluster.status.last_reason) == ({FP8}, "calm_too_short")
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP16))
    cluster.carry_out(cluster.loop.reload(cluster.now_s, make_config("static_fp8")))
    assert cluster.modes == {FP16}
    cluster.carry_out(cluster.loop.override(cluster.now_s, AUTO))
    assert cluster.modes == {FP8}


def test_replicas_hear_how_many_are_ready() -> None:
    cluster = Cluster(make_loop("static_fp16"), ("r0", "r1", "r2", "r3"))
    cluster.run(1, each={"r3": {"ready": False}})
    told = cluster.followers["r0"].latest
    assert told is not None
    assert told.replicas == 3


def test_the_status_shows_the_path_and_the_ages_that_a_replica_told() -> None:
    path = {
        "in_path": 3,
        "wait_p90_ms": 1.5,
        "delivery_p90_ms": 2.5,
        "loop_lag_ms": 4.0,
        "open_streams": 40,
        "paused_streams": 1,
    }
    shown = (
        Cluster(make_loop("static_fp16")).run(0.2, path=path, stats_age_s=0.2, progress_age_s=0.1).status.replicas[0]
    )
    assert shown.path is not None
    assert shown.path.model_dump() == path
    assert (shown.stats_age_s, shown.progress_age_s) == (0.2, 0.1)


def test_a_replica_that_says_that_its_engine_has_died_is_shown_so_at_once_and_counts_no_more() -> None:
    cluster = Cluster(make_loop("static_fp16")).run(0.2)
    assert (cluster.status.replicas[0].ready, cluster.status.replicas[0].fault) == (True, None)
    shown = cluster.run(0.1, ready=False, fault="its engine has died", stats_age_s=0.1).status.replicas[0]
    assert (shown.ready, shown.fault, shown.stale) == (False, "its engine has died", False)
