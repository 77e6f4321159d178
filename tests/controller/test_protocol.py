"""The broadcast protocol: both tables row by row, then under loss, duplication, reordering, delay and restarts."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.config import ControllerConfig
from controller.messages import Directive, DirectiveAck
from controller.protocol import DirectiveFollower, DirectivePublisher
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO
LEASE_S, RENEW_S, PERIOD_S = 2.0, 0.5, 0.1
FALLBACK = ControllerConfig().lapsed


def make_publisher(mode: DirectiveMode = FP16, **options: Any) -> DirectivePublisher:
    return DirectivePublisher(LEASE_S, RENEW_S, mode, **options)


def make_directive(epoch: int, mode: DirectiveMode = FP8, rule: StepRule | None = None) -> Directive:
    return Directive(epoch=epoch, mode=mode, lease_s=LEASE_S, reason="test", rule=rule or StepRule())


# -- follower ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "changed", "accepted", "reason", "in_force"),
    [
        (make_directive(4, FP16), False, False, "older_epoch", (5, FP8)),
        (make_directive(5, FP8), False, True, "renewed", (5, FP8)),
        (make_directive(5, FP16), False, False, "conflict", (5, FP8)),
        (make_directive(5, FP8, StepRule(fp8_wait_s=1)), False, False, "conflict", (5, FP8)),
        (make_directive(6, FP8), False, True, "applied", (6, FP8)),
        (make_directive(6, FP16), True, True, "applied", (6, FP16)),
    ],
)
def test_follower_table(
    second: Directive, changed: bool, accepted: bool, reason: str, in_force: tuple[int, DirectiveMode]
) -> None:
    follower = DirectiveFollower("r", *FALLBACK)
    assert follower.on_directive(0.0, make_directive(5, FP8))[0] is True
    assert follower.on_directive(1.0, second) == (
        changed,
        DirectiveAck(
            replica_id="r",
            epoch=in_force[0],
            directive=in_force[1],
            accepted=accepted,
            reason=reason,
            rule=StepRule(),
            admission_scale=1.0,
        ),
    )
    now = follower.in_force(1.0)
    assert (now.epoch, now.mode) == in_force
    assert follower.lease_remaining_s(1.0) == (LEASE_S if accepted else 1.0)


def test_a_follower_starts_in_its_fallback() -> None:
    follower = DirectiveFollower("r", *FALLBACK)
    now = follower.in_force(0.0)
    assert (now.mode, now.rule, now.epoch, now.expired) == (*FALLBACK, 0, True)
    assert follower.lease_remaining_s(0.0) == 0
    assert follower.on_timer(100.0) is False  # nothing has expired: nothing was ever in force


def test_a_lease_that_runs_out_is_told_once_and_a_renewal_restores_the_directive() -> None:
    follower = DirectiveFollower("r", *FALLBACK)
    follower.on_directive(0.0, make_directive(5))
    assert follower.on_timer(1.99) is False
    assert follower.on_timer(2.0) is True
    assert follower.on_timer(2.1) is False
    assert (follower.in_force(2.1).mode, follower.in_force(2.1).epoch) == (AUTO, 5)
    changed, ack = follower.on_directive(3.0, make_directive(5))
    assert (changed, ack.accepted, ack.directive) == (True, True, FP8)
    assert follower.on_timer(5.0) is True


# -- publisher ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "directive", "expired", "new_epoch", "acked"),
    [
        (5, FP16, False, 5, True),
        (4, FP16, False, 5, False),
        (0, AUTO, False, 5, False),
        (57, FP8, False, 58, False),
        (57, FP16, False, 58, False),
        (5, FP8, False, 6, False),
        (5, FP16, True, 6, False),
        (4, FP16, True, 5, False),
    ],
)
def test_publisher_table(epoch: int, directive: DirectiveMode, expired: bool, new_epoch: int, acked: bool) -> None:
    publisher = make_publisher(epoch=5)
    publisher.due(0.0)
    publisher.on_report(1.0, "r", epoch, directive, expired=expired)
    assert (publisher.epoch, publisher.mode, publisher.acked("r")) == (new_epoch, FP16, acked)
    assert (publisher.due(1.0) is not None) == (new_epoch > 5 or not acked)


def test_a_refusal_for_conflict_raises_the_epoch_and_one_for_age_does_not() -> None:
    publisher = make_publisher(epoch=5)
    ack = DirectiveAck(replica_id="r", epoch=5, directive=FP16, accepted=False, reason="older_epoch")
    publisher.on_ack(0.0, ack)
    assert (publisher.epoch, publisher.acked("r")) == (5, True)
    publisher.on_ack(0.0, ack.model_copy(update={"reason": "conflict"}))
    assert (publisher.epoch, publisher.acked("r")) == (6, False)


def test_a_word_that_an_acknowledgement_has_overtaken_takes_it_back_no_more() -> None:
    publisher = make_publisher()
    publisher.on_report(0.0, "r0", 1, FP16)
    publisher.set_mode(1.0, FP8, StepRule(), "")
    publisher.on_report(1.1, "r0", publisher.epoch, FP8)
    publisher.on_report(1.2, "r0", 1, FP16)  # a snapshot that was on its way
    assert (publisher.acked("r0"), publisher.last_heard("r0")) == (True, (publisher.epoch, FP8))
    publisher.on_report(1.3, "r0", 0, FP16)  # a new engine, which knows of nothing
    assert not publisher.acked("r0")


def test_a_directive_is_sent_once_and_again_only_for_those_who_lag_or_are_silent() -> None:
    publisher = make_publisher()
    first = publisher.due(0.0)
    assert first is not None
    assert (first.epoch, first.mode) == (1, FP16)
    assert publisher.due(10.0) is None  # nobody to send to
    publisher.on_report(10.0, "r", 1, FP16)
    assert publisher.due(10.1) is None  # acknowledged
    assert publisher.due(10.6) == first  # silent for longer than renew_s
    assert publisher.due(10.7) is None
    assert publisher.set_mode(10.8, FP8, StepRule(), "x").epoch == 2
    assert publisher.due(10.8) is not None
    publisher.on_report(10.9, "r", 1, FP16)
    assert publisher.due(11.0) is None  # it lags, but was sent to just now
    publisher.on_report(11.2, "r", 1, FP16)
    assert publisher.due(11.3) is not None
    publisher.retain(())
    assert publisher.due(20.0) is None


def test_the_time_to_the_last_acknowledgement_is_known_once_all_have_acknowledged() -> None:
    publisher = make_publisher()
    for replica in ("a", "b"):
        publisher.on_report(0.0, replica, 0, AUTO)
    publisher.set_mode(10.0, FP8, StepRule(), "x")
    assert publisher.converged_after_s() is None
    publisher.on_report(10.25, "a", 2, FP8)
    assert publisher.converged_after_s() is None
    publisher.on_report(10.5, "b", 2, FP8)
    publisher.on_report(10.75, "a", 2, FP8)
    assert publisher.converged_after_s() == 0.5


# -- both, over a bad network ------------------------------------------------------------------------------------------

REPLICAS = ("r0", "r1", "r2")


@dataclass
class World:
    """One publisher, three followers and a network that holds every message until told what to do with it."""

    now_s: float = 0.0
    publisher: DirectivePublisher = field(default_factory=make_publisher)
    followers: dict[str, DirectiveFollower] = field(
        default_factory=lambda: {name: DirectiveFollower(name, *FALLBACK) for name in REPLICAS}
    )
    wire: list[tuple[str, Any]] = field(default_factory=list)
    # by follower: the epoch and mode of the newest directive, to see that nothing goes backwards
    seen: dict[str, tuple[int, DirectiveMode | None]] = field(default_factory=dict)

    def report(self, name: str) -> None:
        follower = self.followers[name]
        now = follower.in_force(self.now_s)
        self.wire.append(("publisher", (name, now.epoch, now.mode, now.expired and now.epoch > 0)))

    def broadcast(self) -> None:
        directive = self.publisher.due(self.now_s)
        if directive is not None:
            self.wire.extend((name, directive) for name in REPLICAS)

    def deliver(self, index: int, *, keep: bool = False) -> None:
        if not self.wire:
            return
        index %= len(self.wire)
        receiver, message = self.wire[index] if keep else self.wire.pop(index)
        if receiver != "publisher":
            self.receive(receiver, message)
        elif isinstance(message, DirectiveAck):
            self.publisher.on_ack(self.now_s, message)
        else:
            name, epoch, mode, expired = message
            self.publisher.on_report(self.now_s, name, epoch, mode, expired=expired)
            self.wire.append((name, self.publisher.current()))

    def receive(self, name: str, directive: Directive) -> None:
        follower = self.followers[name]
        _, ack = follower.on_directive(self.now_s, directive)
        self.wire.append(("publisher", ack))
        epoch, mode = self.seen.get(name, (0, None))
        now = follower.in_force(self.now_s)
        assert now.epoch >= epoch, "an epoch went backwards"
        if now.epoch == epoch and mode is not None and not now.expired:
            assert now.mode is mode, "one epoch, two modes"
        if not now.expired:
            self.seen[name] = (now.epoch, now.mode)

    def restart_follower(self, name: str) -> None:
        self.followers[name] = DirectiveFollower(name, *FALLBACK)
        self.seen.pop(name, None)

    def exchange(self) -> None:
        """One report period over a perfect network."""
        for name in REPLICAS:
            self.report(name)
        self.broadcast()
        while self.wire:
            self.deliver(0)
        self.now_s += PERIOD_S


names = st.sampled_from(REPLICAS)
actions = st.one_of(
    st.tuples(st.just("report"), names),
    st.tuples(st.just("set_mode"), st.sampled_from(DirectiveMode)),
    st.tuples(st.just("broadcast"), st.none()),
    st.tuples(st.just("deliver"), st.integers(0, 50)),
    st.tuples(st.just("duplicate"), st.integers(0, 50)),
    st.tuples(st.just("lose"), st.integers(0, 50)),
    st.tuples(st.just("wait"), st.floats(0.01, 3.0)),
    st.tuples(st.just("restart_publisher"), st.sampled_from([FP16, FP8])),
    st.tuples(st.just("restart_follower"), names),
)


def play(world: World, script: list[tuple[str, Any]]) -> None:
    for action, argument in script:
        match action:
            case "report":
                world.report(argument)
            case "set_mode":
                world.publisher.set_mode(world.now_s, argument, StepRule(), "test")
            case "broadcast":
                world.broadcast()
            case "deliver" | "duplicate":
                world.deliver(argument, keep=action == "duplicate")
            case "lose":
                if world.wire:
                    world.wire.pop(argument % len(world.wire))
            case "wait":
                world.now_s += argument
            case "restart_publisher":
                world.publisher = make_publisher(argument)
            case "restart_follower":
                world.restart_follower(argument)


scripts = st.lists(actions, max_size=60)


@settings(max_examples=200)
@given(scripts)
def test_after_any_trouble_two_report_periods_bring_everyone_in_line(script: list[tuple[str, Any]]) -> None:
    world = World()
    play(world, script)
    wanted = world.publisher.mode
    world.wire.clear()
    world.exchange()
    world.exchange()
    for name, follower in world.followers.items():
        now = follower.in_force(world.now_s)
        assert (now.epoch, now.mode, now.expired) == (world.publisher.epoch, wanted, False)
        assert world.publisher.acked(name) or now.epoch == world.publisher.epoch
    world.exchange()
    assert all(world.publisher.acked(name) for name in REPLICAS)


@settings(max_examples=100)
@given(scripts)
def test_after_any_trouble_silence_ends_in_the_fallback(script: list[tuple[str, Any]]) -> None:
    world = World()
    play(world, script)
    for follower in world.followers.values():
        had_lease = follower.lease_remaining_s(world.now_s) > 0
        end_s = world.now_s + LEASE_S + 1e-9
        assert follower.lease_remaining_s(world.now_s) <= LEASE_S + 1e-9
        told = follower.on_timer(end_s)
        assert told or not had_lease
        now = follower.in_force(end_s)
        assert (now.mode, now.rule, now.expired) == (*FALLBACK, True)


@settings(max_examples=100)
@given(scripts)
def test_epochs_stay_small_once_the_network_is_well(script: list[tuple[str, Any]]) -> None:
    world = World()
    play(world, script)
    world.wire.clear()
    world.exchange()
    world.exchange()
    epoch = world.publisher.epoch
    for _ in range(30):
        world.exchange()
    assert world.publisher.epoch == epoch
    assert epoch <= 10 + 4 * len(script)


def test_a_restarted_publisher_continues_above_the_highest_epoch() -> None:
    world = World()
    for _ in range(5):
        world.publisher.set_mode(world.now_s, FP8, StepRule(), "x")
    world.exchange()
    world.publisher = make_publisher(FP16)
    world.exchange()
    world.exchange()
    assert world.publisher.epoch == 7
    assert {follower.in_force(world.now_s).mode for follower in world.followers.values()} == {FP16}


def test_a_restarted_follower_catches_up_from_the_answer_to_its_first_snapshot() -> None:
    world = World()
    world.publisher.set_mode(0.0, FP8, StepRule(), "x")
    world.exchange()
    world.restart_follower("r1")
    world.report("r1")
    while world.wire:
        world.deliver(0)
    assert world.followers["r1"].in_force(world.now_s).mode is FP8
