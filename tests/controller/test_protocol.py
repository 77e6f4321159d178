"""The protocol: both tables row by row. Under loss, reordering and restarts: test_protocol_properties.py."""

from typing import Any

import pytest

from controller.config import ControllerConfig
from controller.messages import Directive, DirectiveAck, Fallback, Terms
from controller.protocol.follower import DirectiveFollower
from controller.protocol.publisher import Content, DirectivePublisher
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO
LEASE_S = 2.0
FALLBACK = ControllerConfig().lapsed


def make_publisher(mode: DirectiveMode = FP16, **options: Any) -> DirectivePublisher:
    return DirectivePublisher(Terms(lease_s=LEASE_S), mode, **options)


def make_directive(epoch: int, mode: DirectiveMode = FP8, rule: StepRule | None = None) -> Directive:
    return Directive(epoch=epoch, mode=mode, lease_s=LEASE_S, reason="test", rule=rule or StepRule())


# -- follower ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "changed", "accepted", "in_force"),
    [
        (make_directive(4, FP16), False, False, (5, FP8)),
        (make_directive(5, FP8), False, True, (5, FP8)),
        (make_directive(6, FP8), False, True, (6, FP8)),
        (make_directive(6, FP8, StepRule(fp8_budget_fraction=1)), True, True, (6, FP8)),
        (make_directive(6, FP16), True, True, (6, FP16)),
    ],
)
def test_follower_table(second: Directive, changed: bool, accepted: bool, in_force: tuple[int, DirectiveMode]) -> None:
    follower = DirectiveFollower("r", *FALLBACK)
    assert follower.on_directive(0.0, make_directive(5, FP8))[0] is True
    assert follower.on_directive(1.0, second) == (
        changed,
        DirectiveAck(replica_id="r", epoch=in_force[0], directive=in_force[1]),
    )
    now = follower.in_force(1.0)
    assert (now.epoch, now.mode) == in_force
    assert follower.lease_remaining_s(1.0) == (LEASE_S if accepted else 1.0)


def test_a_follower_starts_in_its_fallback() -> None:
    follower = DirectiveFollower("r", *FALLBACK)
    now = follower.in_force(0.0)
    assert (now.mode, now.rule, now.epoch, now.expired) == (*FALLBACK, 0, True)
    assert follower.lease_remaining_s(0.0) == 0


def test_a_lease_runs_out_and_a_renewal_restores_the_directive() -> None:
    follower = DirectiveFollower("r", *FALLBACK)
    follower.on_directive(0.0, make_directive(5))
    assert [follower.in_force(now_s).expired for now_s in (1.99, 2.0)] == [False, True]
    assert (follower.in_force(2.1).mode, follower.in_force(2.1).epoch) == (AUTO, 5)
    changed, ack = follower.on_directive(3.0, make_directive(5))
    assert (changed, ack.directive) == (True, FP8)
    assert [follower.in_force(now_s).expired for now_s in (4.99, 5.0)] == [False, True]


# -- publisher ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "epoch", "expired", "new_epoch", "acked"),
    [
        (True, 5, False, 5, True),
        (True, 5, True, 5, False),
        (True, 4, False, 5, False),
        (True, 0, False, 5, False),
        (True, 57, False, 58, False),
        (False, 57, False, 58, False),
        (False, 5, False, 6, False),  # another controller has told it
        (False, 4, True, 5, False),
    ],
)
def test_publisher_table(known: bool, epoch: int, expired: bool, new_epoch: int, acked: bool) -> None:
    publisher = make_publisher(epoch=5)
    if known:
        publisher.on_report(0.0, "r", 0, AUTO)
    publisher.on_report(1.0, "r", epoch, FP16, expired=expired)
    assert (publisher.epoch, publisher.content.mode, publisher.acked("r")) == (new_epoch, FP16, acked)


def test_a_word_that_an_acknowledgement_has_overtaken_takes_it_back_no_more() -> None:
    publisher = make_publisher()
    publisher.on_report(0.0, "r0", 0, FP16)
    publisher.on_report(0.1, "r0", 1, FP16)
    publisher.set_content(1.0, Content(FP8), "")
    publisher.on_report(1.1, "r0", publisher.epoch, FP8)
    publisher.on_report(1.2, "r0", 1, FP16)  # a snapshot that was on its way
    assert (publisher.acked("r0"), publisher.last_heard("r0")) == (True, (publisher.epoch, FP8))
    publisher.on_report(1.3, "r0", 0, FP16)  # a new engine, which knows of nothing
    assert not publisher.acked("r0")


def test_each_replica_is_told_its_own_mode_and_to_go_on_with_it_under_a_policy_that_says_so() -> None:
    publisher = make_publisher()
    publisher.set_terms(Terms(lease_s=LEASE_S, fallback=Fallback()), goes_on=True)
    publisher.set_content(1.0, Content(FP16, exceptions={"r1": FP8}), "x")
    told = [publisher.directive_for(name) for name in ("r0", "r1")]
    assert [(each.mode, each.epoch, each.lease_s) for each in told] == [(FP16, 2, LEASE_S), (FP8, 2, LEASE_S)]
    follower = DirectiveFollower("r1", *FALLBACK)
    follower.on_directive(0.0, told[1])
    lapsed = follower.in_force(LEASE_S)
    assert (lapsed.mode, lapsed.expired) == (FP8, True)


def test_the_time_to_the_last_acknowledgement_is_known_once_all_have_acknowledged() -> None:
    publisher = make_publisher()
    for replica in ("a", "b"):
        publisher.on_report(0.0, replica, 0, AUTO)
    publisher.set_content(10.0, Content(FP8), "x")
    assert publisher.converged_after_s() is None
    publisher.on_report(10.25, "a", 2, FP8)
    assert publisher.converged_after_s() is None
    publisher.on_report(10.5, "b", 2, FP8)
    publisher.on_report(10.75, "a", 2, FP8)
    assert publisher.converged_after_s() == 0.5
