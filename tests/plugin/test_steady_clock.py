"""Nothing that the scheduler decides goes by a clock that somebody may set."""

import time

import pytest
from vllm_parts import Engine, engine_request

COSTS = [{"steps": [[1, 10.0, 6.0], [256, 14.0, 8.5], [2048, 60.0, 35.0]], "mixed": None}]
RULE = {"ttft_deadline_s": 0.14, "tpot_deadline_s": 0.5}


def arrived(name, prompt=20, priority=0, **params):
    request = engine_request(name, prompt, **params)
    request.arrival_time, request.priority = time.time(), priority
    return request


def busy(engine, clocks, names, every_s=0.05):
    """Serve these requests, one after the other; return the precisions of their steps."""
    modes = []
    for name in names:
        engine.add(arrived(name, 50, max_tokens=2))
        for _ in range(2):
            step = engine.schedule()
            modes.append(step.nestedfp_mode.value)
            clocks.pass_(0.01)
            engine.finish(step)
        clocks.pass_(every_s - 0.02)
    return modes


@pytest.mark.parametrize("set_by_s", [-600.0, 3600.0])
def test_a_wall_clock_that_is_set_changes_no_precision(clocks, set_by_s):
    engine = Engine()
    engine.scheduler.nestedfp_take_step_costs(COSTS)
    engine.direct("auto", **RULE)
    assert set(busy(engine, clocks, (f"a{i}" for i in range(40)))) == {"fp16"}
    engine.add(arrived("under way", 50, max_tokens=2))
    clocks.wall_s += set_by_s
    assert set(busy(engine, clocks, (f"b{i}" for i in range(200)))) == {"fp16"}


@pytest.mark.parametrize("set_by_s", [-600.0, 3600.0])
def test_a_request_whose_clock_was_set_on_its_way_has_not_waited_for_that(clocks, set_by_s):
    engine = Engine()
    request = arrived("a")
    clocks.wall_s += set_by_s
    engine.add(request)
    assert 0.0 <= engine.scheduler.nestedfp_stats()["oldest_wait_s"] <= 1.1
    clocks.wall_s -= 2 * set_by_s
    assert 0.0 <= engine.scheduler.nestedfp_stats()["oldest_wait_s"] <= 1.1
    assert engine.scheduler.nestedfp_stats()["progress_age_s"] < 1.0


def test_a_wall_clock_that_is_set_back_lets_nobody_overtake(clocks):
    engine = Engine(max_num_seqs=1, scheduling_policy="priority")
    engine.add(arrived("first"))
    clocks.pass_(1.0)
    clocks.wall_s -= 600.0
    engine.add(arrived("second"))
    assert list(engine.schedule().num_scheduled_tokens) == ["first"]


def test_requests_that_came_before_the_costs_are_known_keep_their_deadlines(clocks):
    engine = Engine()
    engine.add(arrived("early", 100))
    engine.scheduler.nestedfp_take_step_costs(COSTS)  # with the first directive
    engine.direct("auto", **RULE)
    clocks.pass_(0.135)
    assert engine.schedule().nestedfp_mode.value == "fp8"
