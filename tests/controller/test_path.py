"""Where the path to the engine, and not the engine, is the limit: said so, and no precision changed for it."""

from typing import Any

import pytest
from control_cluster import Cluster, make_loop
from controller_builders import make_view, window
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.fleet.path_limit import engine_tpot_ms, engine_ttft_ms, path_saturated
from controller.fleet.view import ReplicaView
from nestedfp.modes import DirectiveMode
from workload.slo import USUAL_SLO

FP16, FP8 = DirectiveMode.FP16, DirectiveMode.FP8
SLOW = {"path": {"in_path": 90, "wait_p90_ms": 900.0, "loop_lag_ms": 250.0}, "ttft": window(1200), "tpot": window(360)}


def slow(**path: Any) -> dict[str, Any]:
    return {"path": {"loop_lag_ms": 150.0, **path}}


@pytest.mark.parametrize(
    ("view", "saturated"),
    [
        (make_view(), False),  # nothing is told
        (make_view(**slow(loop_lag_ms=0.0)), False),
        (make_view(**slow(loop_lag_ms=100.0)), False),  # one pause of half the objective
        (make_view(**slow(loop_lag_ms=101.0)), True),
        (make_view(**slow(loop_lag_ms=0.0, wait_p90_ms=51.0)), True),
        (make_view(**slow(loop_lag_ms=0.0, delivery_p90_ms=51.0)), True),
        (make_view(**slow(loop_lag_ms=0.0, wait_p90_ms=49.0, delivery_p90_ms=49.0)), False),
        (make_view(**slow(), oldest_wait_s=0.05), True),
        (make_view(**slow(), oldest_wait_s=0.06), False),  # the engine's own queue is long
        (make_view(**slow(), step_ms_fp16=28.0), True),
        (make_view(**slow(), step_ms_fp16=29.0), False),  # its steps are too slow
        (make_view(**slow(), step_ms_fp16=290.0, running=0), True),  # idle: old news
    ],
)
def test_the_path_is_the_limit_when_it_is_slow_and_the_engine_keeps_up(view: ReplicaView, saturated: bool) -> None:
    assert path_saturated(view, USUAL_SLO) is saturated


delays_ms = st.one_of(st.just(0.0), st.floats(0, 3000))
paths = st.fixed_dictionaries(
    {
        "in_path": st.integers(0, 500),
        "wait_p90_ms": delays_ms,
        "delivery_p90_ms": st.none() | delays_ms,
        "loop_lag_ms": delays_ms,
    }
)


def as_seen_by_clients(path: dict[str, Any], engine_ttft: float = 20.0, step: float = 12.0) -> dict[str, Any]:
    """Latency windows of an engine with hardly any queue behind such a path; every gap between tokens is delayed as well."""
    back_ms = path["loop_lag_ms"] if path["delivery_p90_ms"] is None else path["delivery_p90_ms"]
    return {
        "path": path,
        "ttft": window(engine_ttft + path["wait_p90_ms"] + back_ms),
        "tpot": window(step + back_ms),
        "step_ms_fp16": step,
        "step_ms_fp8": step * 0.7,
    }


@settings(max_examples=12)
@given(seen=st.lists(paths, min_size=1, max_size=4))
def test_a_slow_path_with_an_idle_engine_never_moves_the_precision(seen: list[dict[str, Any]]) -> None:
    cluster = Cluster(make_loop("threshold"), ("r0", "r1")).run(3)
    calm = cluster.status.mode
    for i, path in enumerate(seen):
        cluster.run(8, **as_seen_by_clients(path), slo_evaluated=100 * (i + 1))  # all missed, by what the path added
    assert {record.to_mode for record in cluster.records} <= {FP16, calm}


def test_a_saturated_path_moves_nothing_even_where_nobody_tells_whose_the_misses_are() -> None:
    cluster = Cluster(make_loop("threshold")).run(3)  # it begins between strict and lenient
    calm, changes = cluster.status.mode, len(cluster.records)
    for second in range(1, 61):
        cluster.run(1, **SLOW, slo_evaluated=20 * second, within_slo=0)
    assert (cluster.status.mode, len(cluster.records)) == (calm, changes)
    assert cluster.status.last_reason == "path_saturated"
    assert cluster.status.path_saturated
    assert cluster.status.replicas[0].path_saturated


def test_a_long_engine_queue_moves_it_however_slow_the_path_is() -> None:
    cluster = Cluster(make_loop("threshold")).run(3)
    cluster.run(5, **SLOW, oldest_wait_s=1.0, waiting=40, waiting_tokens=9000)
    assert cluster.modes == {FP8}
    assert not cluster.status.path_saturated


def test_slow_steps_move_it_however_slow_the_path_is() -> None:
    cluster = Cluster(make_loop("threshold")).run(3)
    assert cluster.run(4, tokens_per_s=400, **{**SLOW, "step_ms_fp16": 50.0}).modes == {FP8}  # 20 steps a second


def test_the_windows_that_still_show_the_path_after_it_has_cleared_move_nothing() -> None:
    cluster = Cluster(make_loop("threshold")).run(3).run(5, **SLOW)
    calm = cluster.status.mode
    cluster.run(4, **{**SLOW, "path": {}})
    assert cluster.status.mode is calm
    cluster.run(5, path={})
    assert not cluster.status.path_saturated
    assert cluster.run(5, path={}, tpot=window(60)).modes == {FP8}  # and then they count again


def test_fp8_is_left_though_the_path_is_slow_when_fp16_would_do_for_the_engine() -> None:
    cluster = Cluster(make_loop("threshold")).run(3).run(3, oldest_wait_s=1.0, waiting=40, waiting_tokens=9000)
    assert cluster.modes == {FP8}
    assert cluster.run(40, tokens_per_s=300, **SLOW).modes == {FP16}


def test_what_the_path_adds_is_taken_off_but_never_what_the_steps_explain() -> None:
    told = make_view(path={"wait_p90_ms": 30.0, "loop_lag_ms": 40.0}, step_ms_fp16=25.0).snapshot
    assert engine_ttft_ms(told, 100.0) == 30.0
    assert engine_ttft_ms(told, 50.0) == 0.0
    assert engine_tpot_ms(told, 80.0) == 40.0
    assert engine_tpot_ms(told, 30.0) == 25.0
    assert engine_tpot_ms(told, 20.0) == 20.0
    untold = make_view().snapshot
    assert (engine_ttft_ms(untold, 100.0), engine_tpot_ms(untold, 30.0)) == (100.0, 30.0)
