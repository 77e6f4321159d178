"""The operator's override outlives the controller: replicas keep it and tell it to the next one."""

import pytest
from control_cluster import HOT, Cluster, make_loop

from controller.config import ControllerConfig
from controller.messages import Directive, StandingOrder
from controller.protocol.follower import DirectiveFollower
from nestedfp.modes import DirectiveMode

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO


def restarted(cluster: Cluster, after_s: float = 0.0, **options: object) -> Cluster:
    """The same replicas under a new controller, which comes ``after_s`` later."""
    cluster.now_s = round(cluster.now_s + after_s, 6)
    cluster.loop = make_loop("threshold", **options)
    return cluster


@pytest.mark.parametrize("after_s", [0.0, 1.0, 5.0])  # the last without a lease: the replicas follow their fallback
def test_an_override_survives_a_restart_of_the_controller(after_s: float) -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(3)
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP16))
    cluster.run(1, **HOT)
    assert cluster.modes == {FP16}
    restarted(cluster, after_s).run(5, **HOT)
    assert cluster.modes == {FP16}
    assert cluster.status.override is not None
    assert cluster.status.override.remaining_s is None
    cluster.carry_out(cluster.loop.override(cluster.now_s, AUTO))
    assert cluster.run(3, **HOT).modes == {FP8}  # handed back


def test_what_remains_of_its_time_survives_and_the_time_without_a_controller_counts() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(3)
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP8, ttl_s=60.0))
    cluster.run(20)
    restarted(cluster, after_s=10.0).run(1)
    override = cluster.status.override
    assert override is not None
    assert override.remaining_s == pytest.approx(29.0, abs=0.3)
    cluster.run(28)
    assert cluster.status.override is not None
    cluster.run(3)
    assert cluster.status.override is None


def test_what_was_handed_back_does_not_come_again() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(3)
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP8))
    cluster.run(1)
    cluster.silent = {"r1"}  # has heard of the override, and will not hear of its end
    cluster.carry_out(cluster.loop.override(cluster.now_s, AUTO))
    cluster.run(1)
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP16))
    cluster.carry_out(cluster.loop.override(cluster.now_s + 0.05, AUTO))
    cluster.run(1)
    restarted(cluster).run(0.3)
    cluster.silent = set()
    cluster.run(1)
    assert cluster.status.override is None


def test_the_operators_word_to_the_new_controller_counts_more() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(3)
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP8))
    cluster.run(1)
    restarted(cluster)
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP16))
    cluster.run(2)
    assert cluster.modes == {FP16}


def test_replicas_that_come_back_late_bring_the_override_with_them() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(3)
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP16))
    cluster.run(1)
    restarted(cluster)
    cluster.silent = {"r0", "r1"}
    cluster.run(30)
    assert cluster.mode_of["r1"] is FP16, "nobody has said otherwise"
    cluster.silent = set()
    cluster.run(6, **HOT)
    assert cluster.modes == {FP16}


@pytest.mark.parametrize("mode", [FP16, FP8])
def test_an_override_holds_without_a_controller_until_its_own_time_is_over(mode: DirectiveMode) -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(3)
    cluster.carry_out(cluster.loop.override(cluster.now_s, mode, ttl_s=60.0))
    cluster.run(1)
    cluster.now_s += 50.0
    assert cluster.modes == {mode}
    cluster.now_s += 20.0
    assert cluster.modes == {AUTO}


def test_a_lapsed_override_is_no_reason_to_leave_it_when_the_controller_is_back() -> None:
    """Neither for a step nor for an answer: what replicas say of themselves is taken up before they are told anything."""
    cluster = Cluster(make_loop(), ("r0", "r1")).run(3)
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP16))
    cluster.run(1)
    restarted(cluster, after_s=20.0)
    for _ in range(30):
        assert cluster.run(0.1, **HOT).modes == {FP16}


def test_a_follower_keeps_an_order_and_counts_down() -> None:
    follower = DirectiveFollower("r1", *ControllerConfig().lapsed)
    assert follower.order(0.0) is None
    order = StandingOrder(mode=FP16, remaining_s=10.0)
    follower.on_directive(5.0, Directive(epoch=1, mode=FP16, lease_s=1, reason="", order=order))
    assert follower.order(9.0) == StandingOrder(mode=FP16, remaining_s=6.0)  # the lease has run out
    assert follower.order(15.0) == StandingOrder(mode=FP16, remaining_s=0.0)  # over
