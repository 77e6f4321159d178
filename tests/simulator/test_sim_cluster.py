"""The simulated cluster: determinism and overload.

Run: python -m pytest tests/simulator/test_sim_cluster.py
"""

import pytest
from sim_builders import make_requests, make_table, policy_config

from controller.config import ControllerConfig
from controller.messages import Directive, ReplicaSnapshot
from nestedfp.modes import DirectiveMode, Mode
from simulator.bench import arrivals, simulate
from simulator.cluster.cluster import Cluster, RunResult, Scenario
from simulator.cluster.replica import Replica
from simulator.simulation_summary import SimulationSummary

pytestmark = pytest.mark.slow

TABLE = make_table()
LOAD_S = 60.0


def steady(count: int, rate_rps: float) -> list[tuple[float, int, int]]:
    return [(0.5 + index / rate_rps, 200 + 37 * (index % 17), 20 + index % 50) for index in range(count)]


def run(config: ControllerConfig, scenario: Scenario, *sizes: tuple[float, int, int]) -> RunResult:
    return Cluster(TABLE, config, scenario).run(make_requests(*(sizes or steady(200, 20.0))))


def times(result: RunResult) -> list[tuple[str, float, float]]:
    return [(request.outcome, request.first_s, request.finished_s) for request in result.requests]


def test_the_same_seed_gives_the_same_run():
    crowd = steady(1500, 240.0)  # more than FP16 does, so that FP8 begins
    one, two = (times(run(policy_config("threshold"), Scenario(replicas=3, seed=5), *crowd)) for _ in range(2))
    assert one == two


def test_more_load_is_never_better_and_fp8_carries_more():
    def simulated(policy: str, rate_rps: float) -> SimulationSummary:
        load = arrivals(None, 0.0, LOAD_S, rate_rps, 1)
        return simulate(TABLE, load, policy_config(policy), Scenario(replicas=2))[0]

    runs = [simulated("static_fp16", rate_rps) for rate_rps in (10, 24, 40)]
    waits = [summary.ttft_ms.p90 for summary in runs]
    assert waits == sorted(waits)
    attained = [summary.slo_attainment for summary in runs]
    assert attained == sorted(attained, reverse=True)
    assert attained[-1] < attained[0]
    fp8 = simulated("static_fp8", 24)
    assert fp8.slo_attainment > runs[1].slo_attainment
    # Before the first directive arrives, replicas follow their fallback.
    assert (fp8.fp16_token_share or 0.0) < 0.001
    assert runs[0].fp16_token_share == 1.0


def test_every_request_is_answered_or_said_to_be_shed_or_refused():
    scenario = Scenario(replicas=2, admission_limit=6)
    result = run(policy_config("static_fp16"), scenario, *steady(300, 40.0), (9.0, 9000, 10))
    assert {request.outcome for request in result.requests} == {"finished", "shed", "refused"}
    served = sum(replica.engine.finished_count for replica in result.replicas)
    assert served == sum(request.outcome == "finished" for request in result.requests)


def test_the_ladder_sheds_then_scales_and_takes_both_back():
    ladder = {
        "shed": True,
        "scale": True,
        "max_replicas": 4,
        "shed_after_s": 2,
        "scale_after_s": 4,
        "scale_down_after_s": 20,
    }
    config = policy_config("threshold", ladder=ladder)
    scenario = Scenario(replicas=1, max_replicas=4, cold_start_s=5, admission_limit=150)
    crowd = [(0.5 + index / 150, 400, 30) for index in range(150 * 30)]
    calm = [(40 + index, 400, 30) for index in range(120)]
    counts: list[int] = []
    cluster = Cluster(TABLE, config, scenario, observe=lambda now_s, c: counts.append(len(c.present)))
    result = cluster.run(make_requests(*crowd, *calm))
    reasons = [record.reason for record in result.records]
    assert reasons.index("shed_more") < reasons.index("scale_up")
    assert max(counts) > 1
    assert counts[-1] == 1
    assert result.replica_s > result.ended_s
    assert {request.outcome for request in result.requests} == {"finished", "shed"}
    assert all(request.outcome == "finished" for request in result.requests[-80:])


def test_an_engine_that_lets_everybody_in_and_is_slow_for_all_sheds_and_is_in_time_for_most():
    # Places for 1,000 at once, and for 40 s a tenth more than FP8 serves in time.
    table = TABLE.model_copy(update={"engine": TABLE.engine.model_copy(update={"max_num_seqs": 1000})})
    crowd = [(0.5 + index / 118, 400, 60) for index in range(118 * 40)]

    def in_time(ladder):
        config = policy_config("deadlines", ladder=ladder)
        result = Cluster(table, config, Scenario(replicas=1)).run(make_requests(*crowd))
        finished = [request for request in result.requests if request.outcome == "finished"]
        good = sum(request.ttft_ms <= 200 and request.tpot_ms <= 33.3 for request in finished)
        return good / len(crowd), len(finished) / len(crowd)

    everybody, served = in_time({})
    assert served > 0.95
    shed, served = in_time({"shed": True, "shed_after_s": 3, "shed_settle_s": 5})
    assert shed > everybody + 0.2
    assert served < 0.95


def test_snapshots_are_what_the_schema_demands():
    replica = Replica("r", TABLE, policy_config("static_fp16"))
    replica.take(0.0, Directive(epoch=3, mode=DirectiveMode.FP8, lease_s=2.0, reason="test"))
    for request in make_requests(*((0.0, 400, 40) for _ in range(80))):
        replica.offer(0.0, request)
    snapshot = replica.snapshot(0.5)
    assert ReplicaSnapshot.model_validate(snapshot.model_dump()) == snapshot
    assert (snapshot.mode, snapshot.directive, snapshot.epoch) == (Mode.FP8, DirectiveMode.FP8, 3)
    assert snapshot.lease_remaining_s == pytest.approx(1.5)
    assert (snapshot.running, snapshot.waiting) == (64, 16)
    assert snapshot.waiting_tokens >= 16 * 400
    assert snapshot.oldest_wait_s == pytest.approx(0.5)
    assert snapshot.seq < replica.snapshot(0.6).seq
