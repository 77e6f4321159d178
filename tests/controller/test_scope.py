"""Scopes: the arithmetic of K of N as tables, then each scope in the loop, over real followers."""

import itertools
from typing import Any

import pytest
from control_cluster import AUTO, FP8, FP16, HOT, Cluster, make_loop
from controller_builders import make_view
from hypothesis import given
from hypothesis import strategies as st

from controller.audit import DecisionOutcome
from controller.decide import k_of_n
from controller.decide.scope import compact
from controller.fleet.view import ReplicaView
from controller.policies import POLICIES, threshold
from controller.policies.base import Decision, Observation, PolicySpec
from controller.protocol import Content
from nestedfp.modes import DirectiveMode

FOUR = ("r0", "r1", "r2", "r3")


# -- arithmetic --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fp16_load", "fp8_load", "replicas", "wanted"),
    [
        (0.85, 0.6, 10, 0),
        (1.0, 0.625, 10, 3),  # r = 1.6: 10 * (1 / 0.85 - 1) / 0.6 = 2.9
        (1.2, 0.75, 10, 7),
        (1.36, 0.85, 10, 10),
        (5.0, 2.0, 10, 10),
        (None, 0.5, 10, None),
        (1.2, None, 10, None),
        (1.2, 1.2, 10, None),  # FP8 is no faster: no K helps
        (1.2, 0.7, 0, None),
    ],
)
def test_the_smallest_k_that_serves_the_load(
    fp16_load: float | None, fp8_load: float | None, replicas: int, wanted: int | None
) -> None:
    assert k_of_n.needed(replicas, fp16_load, fp8_load, 0.85) == wanted


@given(st.floats(0.01, 4), st.floats(1.05, 3), st.integers(1, 2000), st.floats(0.3, 1))
def test_k_is_enough_and_one_fewer_would_not_be(load: float, ratio: float, replicas: int, target: float) -> None:
    k = k_of_n.needed(replicas, load, load / ratio, target)
    assert k is not None

    def utilisation(count: int) -> float:
        return load * replicas / (replicas - count + count * ratio)

    assert utilisation(k) <= target * (1 + 1e-6) or k == replicas
    assert k == 0 or utilisation(k - 1) > target * (1 - 1e-6)


@pytest.mark.parametrize(
    ("present", "known", "wanted"), [(0, None, 1), (1, None, 2), (3, None, 6), (6, None, 8), (2, 5, 5), (5, 3, 8)]
)
def test_k_grows_to_what_is_needed_or_doubles(present: int, known: int | None, wanted: int) -> None:
    assert k_of_n.grown(present, 8, known) == wanted


def test_replicas_in_fp8_stay_and_the_most_loaded_come_next() -> None:
    views = [make_view(replica_id=f"r{i}", waiting_tokens=100 * i) for i in range(4)]
    assert k_of_n.chosen(views, (), 2) == {"r3", "r2"}
    assert k_of_n.chosen(views, ("r0",), 2) == {"r0", "r3"}
    assert k_of_n.chosen(views, ("r0", "r1", "r3"), 2) == {"r3", "r1"}
    assert k_of_n.chosen(views, ("r0",), 0, frozen=("r0", "r3")) == {"r0"}
    assert k_of_n.chosen(views, (), 4, frozen=("r3",)) == {"r0", "r1", "r2"}
    assert k_of_n.chosen([make_view(replica_id="old", fp16_only=True), *views[:1]], (), 2) == {"r0"}


views_of_many = st.lists(
    st.builds(
        dict,
        fp16_only=st.sampled_from([False, False, True]),
        oldest_wait_s=st.sampled_from([0.0, 0.1, 2.0]),
        waiting_tokens=st.sampled_from([0, 100, 20_000]),
        running=st.integers(0, 3),
    ),
    max_size=30,
).map(lambda fields: [make_view(replica_id=f"r{i:02d}", **one) for i, one in enumerate(fields)])


@given(views_of_many, st.integers(0, 30), st.data())
def test_nobody_is_passed_over_for_a_replica_that_is_loaded_less(
    views: list[ReplicaView], wanted: int, data: st.DataObject
) -> None:
    able = {view.replica_id: view.snapshot for view in views if not view.snapshot.fp16_only}
    some = st.sets(st.sampled_from([view.replica_id for view in views])) if views else st.just(set[str]())
    in_fp8, frozen = data.draw(some), data.draw(some)
    selected = k_of_n.chosen(data.draw(st.permutations(views)), in_fp8, wanted, frozen)
    stay = in_fp8 & frozen & able.keys()
    assert selected & frozen == stay, "who has changed too often stays as it is"
    assert len(selected) == max(len(stay), min(wanted, len(able.keys() - frozen) + len(stay)))
    for taken, left in itertools.product(selected - frozen, able.keys() - frozen - selected):
        assert (taken in in_fp8) >= (left in in_fp8)
        if (taken in in_fp8) == (left in in_fp8):
            one, other = able[taken], able[left]
            load, less = (
                (one.oldest_wait_s, one.waiting_tokens, one.running),
                (other.oldest_wait_s, other.waiting_tokens, other.running),
            )
            assert load > less or (load == less and taken < left)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.sampled_from(DirectiveMode)),
    st.sampled_from(DirectiveMode),
)
def test_the_compact_form_means_the_same_with_the_fewest_exceptions(
    modes: dict[str, DirectiveMode], base: DirectiveMode
) -> None:
    mode, exceptions = compact(modes, base)
    content = Content(mode, exceptions=exceptions)
    assert {name: content.mode_for(name) for name in modes} == modes
    assert all(exceptions[name] is not mode for name in exceptions)
    assert all(
        len(exceptions) <= sum(other is not candidate for other in modes.values()) for candidate in DirectiveMode
    )
    assert modes or mode is base


# -- each replica for itself -------------------------------------------------------------------------------------------


def test_only_the_loaded_replica_goes_to_fp8_and_only_it_comes_back() -> None:
    cluster = Cluster(make_loop(scope="replica"), FOUR).run(3).run(1, each={"r2": HOT})
    assert cluster.mode_of == {"r0": FP16, "r1": FP16, "r2": FP8, "r3": FP16}
    (record,) = cluster.records[1:]
    assert (record.to_mode, record.exceptions, record.units) == (FP16, {"r2": FP8}, {"r2": "wait_s_over_enter"})
    assert record.inputs["fp8_replicas"] == 1
    assert all(replica.acked for replica in cluster.status.replicas)
    assert [replica.directed for replica in cluster.status.replicas] == [FP16, FP16, FP8, FP16]
    cluster.run(25)
    assert set(cluster.mode_of.values()) == {FP16}


def test_a_large_cluster_is_decided_in_turns_and_nobody_is_left_out() -> None:
    names = tuple(f"r{i}" for i in range(10))
    cluster = Cluster(make_loop(scope="replica", replicas_per_step=4), names).run(3)
    seen = [cluster.run(0.1, **HOT).status.fp8_replicas for _ in range(4)]
    assert seen == [4, 8, 10, 10]
    assert cluster.modes == {FP8}


def test_dwell_and_flip_rate_count_by_replica() -> None:
    guards = {"dwell_fp16_s": 0, "dwell_fp8_s": 0, "max_switches_per_minute": 2}
    cluster = Cluster(make_loop(scope="replica", guards=guards), FOUR).run(1)
    for _ in range(3):
        cluster.run(0.2, each={"r0": HOT}).run(0.2)
    assert cluster.mode_of["r0"] is FP16  # entered and left: two switches, no third
    cluster.run(0.2, each={"r0": HOT, "r1": HOT})
    assert (cluster.mode_of["r0"], cluster.mode_of["r1"]) == (FP16, FP8)
    assert cluster.notes[-1].units == {"r0": "held_by_flip_rate"}


def test_when_most_are_in_fp8_the_others_are_the_exceptions_and_newcomers_do_what_most_do() -> None:
    cluster = Cluster(make_loop(scope="replica"), FOUR).run(3).run(1, each={name: HOT for name in FOUR[1:]})
    assert (cluster.status.mode, cluster.status.exceptions) == (FP8, {"r0": FP16})
    answer = cluster.loop.on_snapshot(cluster.now_s, cluster.snapshot("r0", 0, replica_id="r9", seq=1, epoch=0))
    assert (answer.mode, answer.exceptions) == (FP8, {})


def test_a_silent_replica_stays_as_it_is_and_holds_nobody_else() -> None:
    cluster = Cluster(make_loop(scope="replica"), FOUR).run(3).run(1, each={"r1": HOT, "r2": HOT})
    cluster.silent = {"r1"}
    cluster.run(9)
    assert cluster.loop.status(cluster.now_s).exceptions == {"r1": FP8, "r2": FP8}  # r2: dwell
    cluster.silent = set()
    assert set(cluster.run(25).mode_of.values()) == {FP16}


@pytest.mark.parametrize("scope", ["replica", "k_of_n"])
def test_a_restarted_controller_leaves_every_replica_as_it_was(scope: str) -> None:
    cluster = Cluster(make_loop(scope=scope), FOUR).run(3).run(1, each={"r1": HOT})
    before = cluster.mode_of
    assert list(before.values()).count(FP8) in (1, 2)
    cluster.loop = make_loop(scope=scope)
    cluster.run(0.5)
    assert cluster.mode_of == before
    assert cluster.status.fp8_replicas == list(before.values()).count(FP8)


# -- K of N ------------------------------------------------------------------------------------------------------------


class Planned:
    """A policy that says what the test wants it to: (wish in calm, wish in FP8, loads)."""

    def __init__(self) -> None:
        self.danger, self.leave = False, True
        self.loads: tuple[float | None, float | None] = (None, None)

    def decide(self, observation: Observation, state: Any, config: Any) -> tuple[Decision, Any]:
        fp8 = not self.leave if observation.current is FP8 else self.danger
        return Decision(FP8 if fp8 else FP16, "planned", fp16_load=self.loads[0], fp8_load=self.loads[1]), state


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    plan = Planned()
    spec = PolicySpec(threshold.Threshold, plan.decide, lambda config: (Decision(FP16, "start"), None), adaptive=True)
    table = {**POLICIES, "threshold": spec}
    for module in (
        "controller.decide.loop",
        "controller.decide.scope",
        "controller.decide.k_of_n",
        "controller.decide.overload",
    ):
        monkeypatch.setattr(f"{module}.POLICIES", table)
    return plan


def k_over_time(cluster: Cluster, seconds: int) -> list[int]:
    return [list(cluster.run(1).mode_of.values()).count(FP8) for _ in range(seconds)]


EIGHT = tuple(f"r{i}" for i in range(8))


def test_without_loads_k_doubles_while_in_danger_stays_and_goes_back_one_by_one_after_the_dwell(
    planned: Planned,
) -> None:
    cluster = Cluster(make_loop(scope="k_of_n", guards={"dwell_fp8_s": 5}), EIGHT).run(1)
    planned.danger, planned.leave = True, False
    assert k_over_time(cluster, 5) == [1, 2, 4, 8, 8]
    planned.danger = False
    assert k_over_time(cluster, 30) == [8] * 30
    planned.leave = True
    ks = k_over_time(cluster, 40)
    assert ks[-1] == 0
    assert all(before - after in (0, 1) for before, after in itertools.pairwise(ks))
    changes = [i for i, (before, after) in enumerate(itertools.pairwise(ks)) if before != after]
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(changes))


def test_with_loads_k_goes_at_once_to_what_the_load_needs(planned: Planned) -> None:
    cluster = Cluster(make_loop(scope="k_of_n"), EIGHT).run(1)
    planned.danger, planned.leave, planned.loads = True, False, (1.1, 0.7)
    cluster.run(0.5)
    assert cluster.status.fp8_replicas == 5  # 8 * (1.1 / 0.85 - 1) / (1.1 / 0.7 - 1) = 4.1
    planned.danger = False
    planned.loads = (0.9, 0.57)
    cluster.run(21)
    # 8 * (0.9 / 0.765 - 1) / 0.579 = 2.4: with a margin, and only after the dwell
    assert cluster.status.fp8_replicas == 3
    planned.leave, planned.loads = True, (0.5, 0.3)
    assert set(cluster.run(21).mode_of.values()) == {FP16}
    assert len([r for r in cluster.records if r.outcome is DecisionOutcome.APPLIED]) == 4


def test_danger_outranks_a_load_that_says_all_is_well(planned: Planned) -> None:
    cluster = Cluster(make_loop(scope="k_of_n"), EIGHT).run(1)
    planned.danger, planned.leave, planned.loads = True, False, (0.5, 0.3)
    assert k_over_time(cluster, 4) == [1, 2, 4, 8]


def test_a_constant_load_moves_no_replica(planned: Planned) -> None:
    cluster = Cluster(make_loop(scope="k_of_n"), EIGHT).run(1)
    planned.danger, planned.leave, planned.loads = False, False, (1.1, 0.7)
    cluster.run(1)
    chosen = cluster.mode_of
    for wobble in range(60):
        planned.loads = (1.1 + 0.02 * (wobble % 2), 0.7)
        cluster.run(1, each={f"r{wobble % 8}": {"waiting_tokens": 500, "waiting": 1}})
    moved = [name for name in EIGHT if cluster.mode_of[name] is not chosen[name]]
    assert len(moved) <= 1  # the wobble may need one more, and never swaps


def test_k_of_n_leaves_replicas_that_have_changed_too_often(planned: Planned) -> None:
    bounds = {"dwell_fp8_s": 0, "dwell_fp16_s": 0, "max_switches_per_minute": 2}
    cluster = Cluster(make_loop(scope="k_of_n", guards=bounds, k_of_n={"grow_every_s": 0}), ("r0",)).run(1)
    for _ in range(6):
        planned.danger, planned.leave = not planned.danger, not planned.leave
        cluster.run(0.3)
    assert len([r for r in cluster.records if r.outcome is DecisionOutcome.APPLIED]) == 3  # the start, there and back


def test_policies_that_do_not_observe_decide_for_all_in_every_scope() -> None:
    for scope in ("replica", "k_of_n"):
        assert Cluster(make_loop("static_fp8", scope=scope), FOUR).run(0.3).modes == {FP8}
        assert Cluster(make_loop("engine_auto", scope=scope), FOUR).run(0.3).modes == {AUTO}


def test_no_replica_at_all_is_no_reason_to_change() -> None:
    for scope in ("replica", "k_of_n"):
        cluster = Cluster(make_loop(scope=scope), FOUR).run(2).run(4, **HOT)
        before = cluster.status.mode
        cluster.silent = set(FOUR)
        cluster.run(40)
        assert cluster.status.mode is before is FP8
        assert cluster.status.last_reason == "held_no_ready_replicas"
