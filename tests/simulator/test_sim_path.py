"""The simulated path: a queue before and behind the engine, which the controller must not take for the engine's."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sim_builders import exit_status, make_requests, make_table, policy_config, table_file

from nestedfp.modes import DirectiveMode
from simulator.cluster.cluster import Cluster, RunResult
from simulator.cluster.scenario import Scenario
from simulator.engine.engine import Engine
from simulator.engine.path_queue import HttpPath, PathCost, ServedEngine
from simulator.engine.request import SimRequest
from simulator.run import main

FLOOD = [(i / 30, 20, 100) for i in range(900)]  # 30 s of 3000 tokens a second: about half of what the engine computes


def run(path: PathCost | None, policy: str = "threshold", sizes: Any = FLOOD) -> tuple[RunResult, list[Any]]:
    """A run on one replica, and what the status said every half second."""

    def observe(now_s: float, cluster: Cluster) -> Any:
        return cluster.loop.status(now_s)

    config = policy_config(policy)
    result = Cluster(make_table(), config, Scenario(path=path), observe).run(make_requests(*sizes))
    return result, result.samples


def times(requests: list[SimRequest]) -> list[tuple[float, float]]:
    return [(request.first_s, request.finished_s) for request in requests]


def test_a_path_that_costs_nothing_changes_nothing() -> None:
    plain, served = Engine(make_table()), ServedEngine(make_table(), PathCost(per_token_us=0.0))
    both = []
    for engine in (plain, served):
        requests = make_requests(*FLOOD[:200])
        for request in requests:
            engine.advance(request.arrived_s)
            engine.add(request.arrived_s, request)
        while engine.busy:
            engine.advance(engine.ends_s if engine.ends_s < float("inf") else requests[-1].arrived_s)
        both.append(times(requests))
    for one, other in zip(*both, strict=True):
        assert one == pytest.approx(other)


def test_the_backlog_is_what_came_less_what_time_has_done() -> None:
    path = HttpPath(PathCost(per_token_us=1000.0, per_request_us=5000.0))
    assert path.take_in(0.0) == pytest.approx(0.005)
    assert path.take_in(0.0) == pytest.approx(0.010)
    assert path.backlog_s(0.004) == pytest.approx(0.006)
    assert path.write(0.0, 0.1, 150) == pytest.approx(0.05)  # 150 ms of work in 100 ms
    assert path.backlog_s(0.1) == pytest.approx(0.06)
    assert path.backlog_s(1.0) == 0.0
    told = path.stats(0.1, 3, 7)
    assert (told.in_path, told.open_streams) == (3, 7)
    assert (told.wait_p90_ms, told.delivery_p90_ms, told.loop_lag_ms) == pytest.approx((10.0, 60.0, 60.0))


@pytest.mark.slow
def test_below_its_capacity_the_path_is_hardly_seen() -> None:
    (free, _), (cheap, said) = run(None), run(PathCost())
    for one, other in zip(free.requests, cheap.requests, strict=True):
        assert other.ttft_ms == pytest.approx(one.ttft_ms, abs=5.0)
    assert not any(status.path_saturated for status in said)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["threshold"])
def test_a_saturated_path_limits_the_tokens_and_moves_no_precision(policy: str) -> None:
    result, said = run(PathCost(per_token_us=400.0), policy)
    finished_s = max(request.finished_s for request in result.requests)
    assert 90_000 / finished_s == pytest.approx(2500, rel=0.03)  # 1 / 400 us
    assert max(request.ttft_ms for request in result.requests) > 1000
    assert all(record.to_mode is not DirectiveMode.FP8 for record in result.records)
    later = [status for status in said if status.path_saturated]
    assert len(later) > len(said) / 2
    assert "path_saturated" in {status.last_reason for status in later}


@pytest.mark.slow
def test_an_overloaded_engine_behind_a_cheap_path_is_met_with_fp8() -> None:
    flood = [(i / 60, 200, 100) for i in range(900)]
    result, said = run(PathCost(), "threshold", flood)
    assert any(record.to_mode is DirectiveMode.FP8 for record in result.records)
    assert not any(status.path_saturated for status in said[4:20])


def test_requests_are_seen_on_their_way_and_are_lost_with_the_replica() -> None:
    engine = ServedEngine(make_table(), PathCost(per_request_us=50_000.0))
    requests = make_requests(*[(0.0, 20, 5)] * 4)
    for request in requests:
        engine.add(0.0, request)
    engine.advance(0.12)
    assert (engine.path_stats(0.12).in_path, engine.ongoing, engine.arrivals) == (2, 4 - engine.finished_count, 2)
    assert set(requests[2:]) <= set(engine.unfinished())
    engine.stop()
    assert not engine.busy


def test_tokens_reach_their_clients_in_order() -> None:
    result, _ = run(PathCost(per_token_us=400.0, per_request_us=500.0))
    for request in result.requests:
        assert request.arrived_s < request.first_s <= request.finished_s
    handed = [request.queued_s for request in result.requests]
    assert all(before <= after for before, after in pairwise(handed))


@pytest.mark.slow
def test_the_command_takes_the_paths_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--generate", "poisson", "--duration", 20, "--load", 0.5, "--table", table_file(tmp_path)]
    words += ["--policy", "static_fp16", "--json", tmp_path / "out.json"]
    assert exit_status(main, *words, "--path-us", "--path-request-us", 100) == 0
    assert exit_status(main, *words, "--path-request-us", 100) == 2
    assert "--path-us" in capsys.readouterr().err
