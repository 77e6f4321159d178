"""A request that starves steers nobody's precision: one that others may overtake for ever."""

import time

import pytest
from vllm_parts import Engine, engine_request

COSTS = [{"steps": [[1, 10.0, 6.0], [2048, 60.0, 35.0]], "mixed": None}]


def arrived(name, prompt=20, priority=0, **params):
    request = engine_request(name, prompt, **{"max_tokens": 4, **params})
    request.arrival_time, request.priority = time.time(), priority
    return request


def engine_with(rule, **arguments):
    engine = Engine(max_num_seqs=1, scheduling_policy="priority", max_num_batched_tokens=2048, **arguments)
    engine.scheduler.nestedfp_take_step_costs(COSTS)
    engine.direct("auto", **rule)
    return engine


def fp8_steps_of_others(engine, clocks, priority=0, requests=20):
    """Keep the engine's one place taken by requests that go before those that wait; return its steps in FP8."""
    scheduler = engine.scheduler
    before = scheduler.nestedfp_stats()["steps_fp8"]
    for _ in range(requests):
        while scheduler.running:
            clocks.pass_(0.01)
            engine.step()
        engine.add(arrived(f"n{scheduler._arrivals}", priority=priority))
        clocks.pass_(0.01)
        engine.step()
    return scheduler.nestedfp_stats()["steps_fp8"] - before


RULES = {
    "deadlines": {"ttft_deadline_s": 0.14, "tpot_deadline_s": 1e3},
    "full": {"ttft_deadline_s": 1e6, "tpot_deadline_s": 1e3},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("prompt", [20, 900])
def test_requests_of_a_low_priority_that_starve_steer_nobody(clocks, rule, prompt):
    engine = engine_with(RULES[rule])
    fp8_steps_of_others(engine, clocks)
    for number in range(20):
        engine.add(arrived(f"batch{number}", prompt, priority=1 + number % 2))
    assert fp8_steps_of_others(engine, clocks) == 0
    clocks.pass_(60.0)
    assert fp8_steps_of_others(engine, clocks) == 0
    stats = engine.scheduler.nestedfp_stats()
    assert (stats["waiting"] >= 20, stats["oldest_wait_s"] < 1.0, stats["waiting_tokens"] < 100) == (True, True, True)
    engine.run()
    assert not engine.scheduler._may_starve


@pytest.mark.parametrize("prompt", [20, 900])
def test_one_of_a_usual_priority_that_starves_asks_for_fp8(clocks, prompt):
    engine = engine_with(RULES["deadlines"])
    fp8_steps_of_others(engine, clocks, priority=-1)
    engine.add(arrived("starves", prompt))
    assert fp8_steps_of_others(engine, clocks, priority=-1) > 0
