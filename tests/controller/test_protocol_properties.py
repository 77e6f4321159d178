"""The protocol over a bad network, in simulated time, with the real loop and followers.

Every message may be lost, doubled, delayed and overtaken; either side may restart. What must
hold then: a follower's epoch never falls while it lives, one epoch of a controller means one thing to a replica, a follower that
hears nothing ends in its fallback within a lease of its own time, and once the network is well everybody agrees.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from controller_builders import make_snapshot
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.config import RENEW_S, ControllerConfig
from controller.decide.loop import ControlLoop, Effects
from controller.messages import Directive, DirectiveAck
from controller.protocol.follower import DirectiveFollower
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule

pytestmark = pytest.mark.slow

FP16, FP8 = DirectiveMode.FP16, DirectiveMode.FP8
PERIOD_S = 0.1


@dataclass
class Network:
    """What happens to a message; probabilities and seconds."""

    loss: float = 0.0
    double: float = 0.0
    delay_s: tuple[float, float] = (0.001, 0.02)


class Node:
    """A replica: the live follower, and the reports that an agent sends."""

    def __init__(self, name: str, config: ControllerConfig) -> None:
        self.name, self.config = name, config
        self.lives = 0
        self.restart()

    def restart(self) -> None:
        self.lives += 1
        self.name = f"{self.name}'"  # Serve gives every replica a name of its own
        self.seq = 0
        self.follower = DirectiveFollower(self.name, *self.config.lapsed)
        self.calls, self.token = 0, ""
        self.seen: tuple[int, str, Any] = (0, "", None)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        force = self.follower.in_force(now_s)
        self.seq += 1
        return {
            "replica_id": self.name,
            "seq": self.seq,
            "directive": force.mode,
            "epoch": force.epoch,
            "rule": force.rule,
            "admission_scale": force.admission_scale,
            "lease_remaining_s": self.follower.lease_remaining_s(now_s),
        }

    def take(self, now_s: float, directive: Directive, token: str) -> DirectiveAck:
        _, ack = self.follower.on_directive(now_s, directive)
        force = self.follower.in_force(now_s)
        epoch, seen, content = self.seen
        assert force.epoch >= epoch, "an epoch went backwards"
        if not force.expired:
            present = (force.mode, force.rule, force.admission_scale)
            assert force.epoch > epoch or token != seen or content == present, "one epoch, two contents"
            self.seen = (force.epoch, token, present)
        assert self.follower.lease_remaining_s(now_s) <= self.config.lease_s + 1e-9
        return ack


class World:
    """Events in simulated time."""

    def __init__(self, replicas: int, network: Network, seed: int, **config: Any) -> None:
        self.config = ControllerConfig.model_validate({"policy": {"name": "static_fp16"}, **config})
        self.loop = ControlLoop(self.config)
        self.network, self.random = network, random.Random(seed)
        self.now_s = 0.0
        self.nodes = [Node(f"r{i:02d}", self.config) for i in range(replicas)]
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.controller_up = True
        self.controllers, self.told_epoch, self.answers = 1, 0, 0
        self.waiting: dict[str, tuple[Node, int]] = {}
        self.begin()
        self.step_at_s = 0.0
        self.at(0.0, self.step)

    def begin(self) -> None:
        for node in self.nodes:
            for what in (self.report, self.call):
                self.at(self.random.uniform(0, PERIOD_S), lambda node=node, what=what: what(node))

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now_s + delay_s, next(self.order), event))

    def send(self, deliver: Callable[[], None]) -> None:
        for _ in range(1 + (self.random.random() < self.network.double)):
            if self.random.random() >= self.network.loss:
                self.at(self.random.uniform(*self.network.delay_s), deliver)

    def report(self, node: Node) -> None:
        snapshot = make_snapshot(**node.snapshot(self.now_s))
        self.send(lambda: self.receive(node, snapshot))
        self.at(PERIOD_S, lambda: self.report(node))

    def receive(self, node: Node, snapshot: Any) -> None:
        if self.controller_up:
            new = self.loop.directive_for(node.name) is None
            self.loop.on_snapshot(self.now_s, snapshot)
            self.tell(node.name if new else None)

    # A replica's calls, as the agent makes them and the live controller answers them.

    def call(self, node: Node, ack: DirectiveAck | None = None) -> None:
        node.calls += 1
        number, seen, lives = node.calls, node.token, node.lives
        self.send(lambda: self.called(node, number, seen, ack))
        late_s = 2 * RENEW_S
        self.at(late_s, lambda: self.call(node) if (node.calls, node.lives) == (number, lives) else None)

    def called(self, node: Node, number: int, seen: str, ack: DirectiveAck | None) -> None:
        if not self.controller_up:
            return
        if ack is not None:
            self.loop.on_ack(self.now_s, ack)
            self.tell()
        older = self.waiting.pop(node.name, None)
        mine = self.waiting[node.name] = (node, number)
        if older is not None or (seen != self.token and self.loop.directive_for(node.name) is not None):
            self.answer(node.name)
        else:
            self.at(RENEW_S, lambda: self.answer(node.name) if self.waiting.get(node.name) == mine else None)

    @property
    def token(self) -> str:
        return f"{self.controllers}-{self.loop.epoch}"

    def tell(self, newcomer: str | None = None) -> None:
        if self.loop.epoch != self.told_epoch:
            self.told_epoch = self.loop.epoch
            for name in list(self.waiting):
                self.answer(name)
        elif newcomer in self.waiting:
            self.answer(newcomer)

    def answer(self, name: str) -> None:
        node, number = self.waiting.pop(name)
        directive, token = self.loop.directive_for(name), self.token
        self.answers += 1
        self.send(lambda: self.told(node, number, token, directive))

    def told(self, node: Node, number: int, token: str, directive: Directive | None) -> None:
        if node.calls != number:
            return  # as the standing call does with what nobody waits for any longer
        ack = None
        if directive is not None:
            node.token, ack = token, node.take(self.now_s, directive, token)
        self.call(node, ack)

    def step(self) -> None:
        if not self.controller_up or self.now_s < self.step_at_s - 1e-9:
            return
        self.carry_out(self.loop.step(self.now_s))

    def carry_out(self, effects: Effects) -> None:
        self.tell()
        pause_s = max(1e-4, effects.next_step_at_s - self.now_s)
        self.step_at_s = self.now_s + pause_s
        self.at(pause_s, self.step)

    def run(self, duration_s: float) -> None:
        end_s = self.now_s + duration_s
        while self.events and self.events[0][0] <= end_s:
            self.now_s, _, event = heapq.heappop(self.events)
            event()
        self.now_s = end_s

    def order_all(self, mode: DirectiveMode) -> None:
        self.carry_out(self.loop.override(self.now_s, mode))

    def restart_controller(self) -> None:
        self.loop = ControlLoop(self.config)
        self.controller_up = True
        self.controllers, self.told_epoch = self.controllers + 1, 0
        self.waiting.clear()
        self.step_at_s = self.now_s
        self.at(0.0, self.step)

    def in_force(self) -> list[tuple[DirectiveMode, bool]]:
        forces = [node.follower.in_force(self.now_s) for node in self.nodes]
        return [(force.mode, force.expired) for force in forces]


# -- how fast ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3, 0.6])
def test_more_loss_takes_longer_and_ends_all_the_same(loss: float) -> None:
    """A call whose answer is lost is made again after twice RENEW_S, and answered at once."""
    world = World(64, Network(loss=loss), seed=1)
    world.run(2)
    world.order_all(FP8)
    world.run(0.05 + 80 * loss)
    assert all(mode is FP8 for mode, _ in world.in_force())
    assert loss > 0.1 or sum(expired for _, expired in world.in_force()) <= 64 * loss


def test_on_a_well_network_calls_are_answered_when_something_is_new_and_to_renew_the_lease() -> None:
    world = World(8, Network(), seed=1)
    world.run(1)
    before = world.answers
    world.order_all(FP8)
    world.run(5)
    assert 8 * 9 <= world.answers - before <= 8 * 12


# -- whatever happens --------------------------------------------------------------------------------------------------

events = st.one_of(
    st.tuples(st.just("run"), st.floats(0.01, 3.0)),
    st.tuples(st.just("order"), st.sampled_from([FP16, FP8])),
    st.tuples(st.just("restart_node"), st.integers(0, 4)),
    st.tuples(st.just("kill_controller"), st.none()),
    st.tuples(st.just("restart_controller"), st.none()),
    st.tuples(st.just("cut"), st.none()),
)
networks = st.builds(
    Network,
    loss=st.floats(0, 0.9),
    double=st.floats(0, 0.5),
    delay_s=st.tuples(st.floats(0, 0.01), st.floats(0.01, 3.0)),  # so long that messages overtake each other
)


def trouble(world: World, script: list[tuple[str, Any]]) -> None:
    for what, argument in script:
        match what:
            case "run":
                world.run(argument)
            case "order":
                if world.controller_up:
                    world.order_all(argument)
            case "restart_node":
                world.nodes[argument].restart()
            case "kill_controller":
                world.controller_up = False
            case "restart_controller":
                world.restart_controller()
            case "cut":
                world.events = [event for event in world.events if event[0] <= world.now_s]


@settings(max_examples=30)
@given(st.lists(events, max_size=25), networks, st.integers(0, 2**32), st.sampled_from([FP16, FP8]))
def test_after_any_trouble_a_well_network_brings_everybody_in_line(
    script: list[tuple[str, Any]], network: Network, seed: int, wanted: DirectiveMode
) -> None:
    world = World(5, network, seed)
    trouble(world, script)
    world.network = Network()
    world.events = []  # what is still on its way is lost; old messages are the business of the trouble before
    world.begin()
    world.restart_controller()
    world.run(0.5)
    world.order_all(wanted)
    world.run(0.5)
    assert world.in_force() == [(wanted, False)] * 5
    status = world.loop.status(world.now_s)
    assert all(replica.acked for replica in status.replicas)
    epoch = status.epoch
    world.run(5)
    assert world.loop.status(world.now_s).epoch == epoch, "a well network raises no epochs"


@settings(max_examples=30)
@example([("run", 0.01)], Network(loss=0.0, double=0.0, delay_s=(0.01, 0.01)), 0)
@given(st.lists(events, max_size=25), networks, st.integers(0, 2**32))
def test_after_any_trouble_silence_ends_in_the_fallback(
    script: list[tuple[str, Any]], network: Network, seed: int
) -> None:
    world = World(5, network, seed)
    trouble(world, script)
    for node in world.nodes:
        end_s = world.now_s + world.config.lease_s + 1e-6  # sums of floats round
        force, order = node.follower.in_force(end_s), node.follower.order(end_s)
        mode, rule = world.config.lapsed if order is None else (order.mode, StepRule())
        assert (force.mode, force.rule, force.admission_scale, force.expired) == (mode, rule, 1.0, True)
