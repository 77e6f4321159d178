"""Replicas that do other than most: a policy that names them and keeps its own pace, over real followers."""

from collections.abc import Mapping
from typing import Any

import pytest
from control_cluster import AUTO, FP8, FP16, HOT, Cluster, make_loop

from controller.policies import POLICIES, threshold
from controller.policies.base import Decision, Observation, PolicySpec
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule

FOUR = ("r0", "r1", "r2", "r3")
RULE = StepRule(ttft_deadline_s=0.1, tpot_deadline_s=0.03)


class Said:
    """A policy that says what the test wants it to, and goes on with what is in force when it starts anew."""

    def __init__(self) -> None:
        self.exceptions: Mapping[str, DirectiveMode] | None = {}  # None: those in force
        self.seen: list[Observation] = []

    def decide(self, observation: Observation, state: Any, config: Any) -> tuple[Decision, Any]:
        self.seen.append(observation)
        wanted = observation.exceptions if self.exceptions is None else self.exceptions
        mode = observation.current if self.exceptions is None else FP16
        return Decision(mode, "said", RULE, exceptions=wanted), state


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    policy = Said()
    spec: PolicySpec[Any, Any] = PolicySpec(threshold.Threshold, policy.decide, threshold.SPEC.start, adaptive=True)
    for module in ("loop", "overload"):
        monkeypatch.setattr(f"controller.decide.{module}.POLICIES", {**POLICIES, "threshold": spec})
    return policy


def test_replicas_change_at_every_step(said: Said) -> None:
    cluster = Cluster(make_loop(), FOUR).run(1)
    for step in range(12):
        said.exceptions = {f"r{step % 4}": FP8, "r3": AUTO}
        cluster.run(0.1)
        assert cluster.mode_of == {name: said.exceptions.get(name, FP16) for name in FOUR}
        assert cluster.followers["r3"].in_force(cluster.now_s).rule == RULE
    assert cluster.records[-1].exceptions == cluster.status.exceptions == said.exceptions


def test_the_policy_sees_what_each_replica_does(said: Said) -> None:
    said.exceptions = {"r1": FP8}
    Cluster(make_loop(), FOUR).run(1)
    assert [said.seen[-1].mode_of(name) for name in FOUR] == [FP16, FP8, FP16, FP16]


def test_a_replica_of_which_nothing_is_known_stays_as_it_is_and_holds_nobody_else(said: Said) -> None:
    said.exceptions = {"r1": FP8, "r2": FP8}
    cluster = Cluster(make_loop(), FOUR).run(1)
    cluster.silent = {"r1"}
    cluster.run(2)
    said.exceptions = {"r3": FP8}
    cluster.run(1)
    assert cluster.status.exceptions == {"r1": FP8, "r3": FP8}
    cluster.silent = set()
    assert cluster.run(0.5).status.exceptions == {"r3": FP8}


@pytest.mark.parametrize("first", FOUR)
def test_a_restarted_controller_leaves_every_replica_as_it_was_whoever_speaks_first(said: Said, first: str) -> None:
    said.exceptions = {"r1": FP8, "r3": FP8}
    cluster = Cluster(make_loop(), FOUR).run(1)
    before = cluster.mode_of
    said.exceptions = {}  # by the replicas known at first it would decide otherwise
    cluster.loop = make_loop()
    cluster.silent = set(FOUR) - {first}
    cluster.run(0.4)
    cluster.silent = set()
    said.exceptions = None
    cluster.run(1.0)
    assert cluster.mode_of == before
    assert cluster.run(3.0).mode_of == before, "the policy goes on from what is in force"
    said.exceptions = {"r0": FP8}
    assert cluster.run(0.2).mode_of == {"r0": FP8, "r1": FP16, "r2": FP16, "r3": FP16}


def test_the_ladder_takes_fp8_off_no_replica_while_users_are_turned_away(said: Said) -> None:
    said.exceptions = dict.fromkeys(FOUR, FP8)
    ladder = {"shed": True, "shed_after_s": 1, "recover_after_s": 60}
    cluster = Cluster(make_loop(ladder=ladder), FOUR).run(1).run(5, **HOT)
    assert cluster.last.admission < 1
    said.exceptions = {"r0": FP8}
    assert cluster.run(1).modes == {FP8}
    assert cluster.status.last_reason == "held_by_ladder"
