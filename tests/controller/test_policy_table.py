"""Rows of numbers and views of replicas must give every policy, guard and measurement the same, to the last bit."""

from dataclasses import replace
from typing import Any

import pytest
from controller_builders import make_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.config import ControllerConfig
from controller.decide import guards, k_of_n, overload
from controller.fleet.fleet import Fleet
from controller.fleet.table import FEWEST, FIELDS, Table, in_order_sum
from controller.fleet.view import Rates, ReplicaView
from controller.messages import LatencyWindow, PathStats
from controller.policies import POLICIES, error_budget
from controller.policies.base import Observation
from controller.policies.signals import health, misses, sums
from controller.protocol.publisher import Content
from nestedfp.modes import DirectiveMode, Mode
from workload.slo import Slo

pytestmark = pytest.mark.slow

SLO = Slo()


def amounts(most: float) -> st.SearchStrategy[float]:
    """From nothing to ``most``, with 0 more often than chance would have it."""
    return st.one_of(st.just(0.0), st.floats(0.0, most, allow_subnormal=False))


windows = st.builds(
    lambda count, p50_ms: LatencyWindow(count=count, p50_ms=p50_ms, p90_ms=2 * p50_ms, p99_ms=3 * p50_ms),
    st.integers(0, 20),
    amounts(400.0),
)
step_times_ms = st.one_of(st.none(), amounts(60.0))
rates = st.builds(
    Rates,
    span_s=st.just(1.0),
    arrivals_per_s=amounts(50.0),
    arrived_tokens_per_s=amounts(9e3),
    tokens_fp16_per_s=amounts(9e3),
    tokens_fp8_per_s=amounts(9e3),
    queue_growth_tokens_per_s=st.one_of(st.just(0.0), st.floats(-9e3, 9e3, allow_subnormal=False)),
    steps_fp16_per_s=amounts(100.0),
    steps_fp8_per_s=amounts(100.0),
    slo_evaluated_per_s=amounts(50.0),
    within_slo_per_s=amounts(50.0),
)
paths = st.builds(
    PathStats,
    in_path=st.integers(0, 40),
    wait_p90_ms=amounts(100.0),
    delivery_p90_ms=st.none() | amounts(100.0),
    loop_lag_ms=amounts(200.0),
)
snapshots = st.fixed_dictionaries(
    {
        "ready": st.booleans() | st.just(True),
        "ready_for_s": st.none() | amounts(5.0),
        "fp16_only": st.booleans(),
        "stats_age_s": amounts(8.0),
        "progress_age_s": st.none() | amounts(15.0),
        "mode": st.sampled_from(Mode),
        "waiting": st.integers(0, 30),
        "waiting_tokens": st.integers(0, 20_000),
        "oldest_wait_s": amounts(2.0),
        "running": st.integers(0, 8),
        "kv_usage": st.floats(0, 1),
        "step_ms_fp16": step_times_ms,
        "step_ms_fp8": step_times_ms,
        "ttft": windows,
        "tpot": windows,
        "path": st.none() | paths,
    }
)
ages_s = amounts(3.0)
views = st.builds(
    lambda snapshot, rates, standing, age_s, fp16_age_s, path_age_s, cold: ReplicaView(
        make_snapshot(**snapshot), age_s, rates, standing, fp16_age_s, path_age_s, cold
    ),
    snapshots,
    st.none() | rates,
    st.integers(0, 5000),
    ages_s,
    st.none() | ages_s,
    st.none() | amounts(10.0),
    st.booleans(),
)


def named(found: list[ReplicaView]) -> tuple[ReplicaView, ...]:
    return tuple(
        replace(view, snapshot=view.snapshot.model_copy(update={"replica_id": f"r{i:03d}"}))
        for i, view in enumerate(found)
    )


fleets = st.lists(views, max_size=30).map(named)


@settings(deadline=None)  # what is asserted is no time, and machines are busy
@given(fleets, st.floats(1, 4), st.sampled_from([0.0, 0.05, 0.25, 0.9]))
def test_replicas_are_assessed_alike(fleet: tuple[ReplicaView, ...], step_ratio: float, share: float) -> None:
    settings = health.HealthSettings(tolerated_share=share)
    by_view = health.assess_views(fleet, SLO, step_ratio, settings)
    assert health.assess(Table.of(fleet), SLO, step_ratio, settings) == by_view


@settings(deadline=None)  # what is asserted is no time, and machines are busy
@given(fleets)
def test_loads_misses_and_tokens_add_up_alike(fleet: tuple[ReplicaView, ...]) -> None:
    table = Table.of(fleet)
    assert sums.add_up(table) == sums.sum_views(fleet)
    assert misses.rates(Observation(0.0, table)) == misses.rates(Observation(0.0, fleet))
    assert error_budget.tokens_per_s(table) == error_budget.tokens_per_s(fleet)


@pytest.mark.parametrize("name", [name for name, spec in POLICIES.items() if spec.adaptive])
@settings(deadline=None)  # what is asserted is no time, and machines are busy
@given(fleets=st.lists(fleets, max_size=4), current=st.sampled_from(DirectiveMode))
def test_policies_decide_alike(name: str, fleets: list[tuple[ReplicaView, ...]], current: DirectiveMode) -> None:
    spec = POLICIES[name]
    config = spec.config.model_validate({"name": name})
    states: list[Any] = [spec.start(config)[1], spec.start(config)[1]]
    for i, fleet in enumerate(fleets):
        by_view, states[0] = spec.decide(Observation(i * 0.5, fleet, current), states[0], config)
        by_row, states[1] = spec.decide(Observation(i * 0.5, Table.of(fleet), current), states[1], config)
        assert (by_row, states[1]) == (by_view, states[0])


@settings(deadline=None)  # what is asserted is no time, and machines are busy
@given(fleets)
def test_guards_and_the_ladder_see_the_same_replicas(fleet: tuple[ReplicaView, ...]) -> None:
    table = Table.of(fleet)
    assert tuple(guards.warmed_up(table, 2.0)) == guards.warmed_up(fleet, 2.0)
    assert tuple(guards.fresh(table, 1.0)) == guards.fresh(fleet, 1.0)
    assert tuple(guards.usable(table, guards.GuardConfig())) == guards.usable(fleet, guards.GuardConfig())
    exceptions = {"r000": DirectiveMode.FP8}
    for content in (Content(DirectiveMode.FP16), Content(DirectiveMode.FP16, exceptions=exceptions)):
        arguments = (content, ControllerConfig(), 0.5, 1.0)
        assert overload.measure(0.0, table, *arguments) == overload.measure(0.0, fleet, *arguments)


@settings(deadline=None)  # what is asserted is no time, and machines are busy
@given(fleets, st.integers(0, 30), st.data())
def test_the_loaded_replicas_are_chosen(fleet: tuple[ReplicaView, ...], wanted: int, data: st.DataObject) -> None:
    """Against a plain sort by key."""
    names = [view.replica_id for view in fleet]
    some = st.sets(st.sampled_from(names)) if names else st.just(set[str]())
    in_fp8, frozen = data.draw(some), data.draw(some)

    def rank(view: ReplicaView) -> tuple[bool, float, int, int, str]:
        one = view.snapshot
        return (one.replica_id not in in_fp8, -one.oldest_wait_s, -one.waiting_tokens, -one.running, one.replica_id)

    able = sorted((view for view in fleet if not view.snapshot.fp16_only), key=rank)
    stay = {view.replica_id for view in able if view.replica_id in frozen & in_fp8}
    free = [view.replica_id for view in able if view.replica_id not in frozen]
    expected = stay | set(free[: max(0, wanted - len(stay))])
    assert k_of_n.chosen(fleet, in_fp8, wanted, frozen) == expected
    assert k_of_n.chosen(Table.of(fleet), in_fp8, wanted, frozen) == expected


# What the fleet is told: (replica, seconds since the last, snapshot fields); a huge wait is implausible, a new incarnation
# forgets the past.
reports = st.lists(
    st.tuples(
        st.integers(0, 2 * FEWEST),
        st.sampled_from([0.0, 0.1, 0.6]),
        st.fixed_dictionaries(
            {
                "incarnation": st.sampled_from("aaab"),
                "steps_fp16": st.integers(0, 200),
                "arrived_tokens": st.integers(0, 5000),
                "oldest_wait_s": st.sampled_from([0.0, 0.1, 9999.0]),
                "path": st.none() | paths,
            }
        ),
    ),
    max_size=60,
)


@settings(deadline=None)  # what is asserted is no time, and machines are busy
@given(reports, st.integers(0, FEWEST))
def test_the_rows_of_a_fleet_are_those_of_its_views(
    heard: list[tuple[int, float, dict[str, Any]]], asleep: int
) -> None:
    fleet, now_s, seq = Fleet(1.0, 3.0), 0.0, 0
    for i in range(2 * FEWEST + asleep):
        fleet.on_snapshot(now_s, make_snapshot(replica_id=f"r{i:03d}", seq=0))
    for replica, pause_s, fields in heard:
        now_s, seq = now_s + pause_s, seq + 1
        fleet.on_snapshot(now_s, make_snapshot(replica_id=f"r{replica:03d}", seq=seq, **fields))
        fleet.forget_silent(now_s)
        seen = fleet.views(now_s)
        views = tuple(seen)
        assert [view.replica_id for view in views] == sorted(view.replica_id for view in views)
        assert isinstance(seen, Table) == (len(views) >= FEWEST)
        if isinstance(seen, Table):
            expected = Table.of(views)
            assert seen.ids == expected.ids
            for name in FIELDS:
                assert repr(seen.rows[name].tolist()) == repr(expected.rows[name].tolist())


def test_a_table_is_a_sequence_of_views() -> None:
    fleet = named([ReplicaView(make_snapshot()) for _ in range(3)])
    table = Table.of(fleet)
    assert (len(table), table[1], table[1:], tuple(table)) == (3, fleet[1], fleet[1:], fleet)
    assert table.where(table.rows["ready"] > 0) is table
    assert len(table.where(table.rows["ready"] == 0)) == 0


def test_sums_run_from_the_first_to_the_last() -> None:
    rows = Table.of(named([ReplicaView(make_snapshot(kv_usage=0.1)) for _ in range(1000)])).rows
    added = 0.0
    for value in rows["kv_usage"].tolist():
        added += value
    assert in_order_sum(rows["kv_usage"]) == added != rows["kv_usage"].sum()
