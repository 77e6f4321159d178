"""A policy that goes by thresholds in a closed loop: the real control loop round a simulated replica."""

import random
from collections.abc import Iterator

import pytest

from controller.config import ControllerConfig
from nestedfp.modes import DirectiveMode
from simulator import simulation_summary
from simulator.cluster.cluster import Cluster, RunResult
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import TABLE as H100_8B
from simulator.engine.cost_table import read_table
from simulator.engine.request import SimRequest
from simulator.load_units import capacity_rps
from workload.azure import Arrival
from workload.slo import USUAL_SLO

pytestmark = pytest.mark.slow

PROMPT, OUTPUT = 1000, 100
TABLE = read_table(H100_8B)


def poisson(rate_per_s: float, from_s: float, to_s: float, seed: int = 0) -> Iterator[Arrival]:
    dice, at_s = random.Random(seed), from_s
    while (at_s := at_s + dice.expovariate(rate_per_s)) < to_s:
        yield Arrival(at_s, dice.randint(PROMPT // 2, 3 * PROMPT // 2), dice.randint(OUTPUT // 2, 3 * OUTPUT // 2))


FP16_CAPACITY_RPS = capacity_rps(TABLE, tuple(poisson(10.0, 0, 100)), DirectiveMode.FP16)


def run(policy: str, arrivals: list[Arrival]) -> RunResult:
    config = ControllerConfig.model_validate({"policy": {"name": policy}})
    requests = [SimRequest(i, one.at_s, one.prompt_tokens, one.output_tokens) for i, one in enumerate(arrivals)]
    return Cluster(TABLE, config, Scenario()).run(requests)


def test_threshold_is_bounded_by_the_guards_alone() -> None:
    result = run("threshold", list(poisson(0.85 * FP16_CAPACITY_RPS, 0, 120)))
    assert simulation_summary.worst_minute(result.records) <= 6


def test_a_light_load_stays_out_of_fp8() -> None:
    result = run("threshold", list(poisson(0.2 * FP16_CAPACITY_RPS, 0, 60)))
    assert all(record.to_mode is not DirectiveMode.FP8 for record in result.records)
    assert simulation_summary.attainment(result.requests, USUAL_SLO) > 0.97


def test_a_burst_is_met_within_seconds_and_left_afterwards() -> None:
    calm, burst = 0.3 * FP16_CAPACITY_RPS, 1.25 * FP16_CAPACITY_RPS
    arrivals = [*poisson(calm, 0, 20), *poisson(burst, 20, 40, seed=1), *poisson(calm, 40, 150, seed=2)]
    result = run("threshold", arrivals)
    into_fp8 = [record.now_s for record in result.records if record.to_mode is DirectiveMode.FP8]
    assert into_fp8
    assert 20 <= into_fp8[0] <= 26
    assert result.records[-1].to_mode is not DirectiveMode.FP8
    assert max(simulation_summary.switches_at_s(result.records)) <= 140
    exact = run("static_fp16", arrivals)
    shares = [simulation_summary.attainment(each.requests, USUAL_SLO) for each in (result, exact)]
    assert shares[0] >= shares[1] + 0.02
