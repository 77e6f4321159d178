"""The simulated engine: what steps take, in which order, by which rule. Run: python -m pytest tests/simulator/test_sim_engine.py"""

from collections.abc import Sequence

import pytest
from sim_builders import FP8, FP16, drive, make_requests, make_table

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import EngineTable
from simulator.engine.engine import CHUNK_S, Engine
from simulator.engine.request import SimRequest

pytestmark = pytest.mark.slow


def serve(table: EngineTable, requests: Sequence[SimRequest], mode: DirectiveMode = DirectiveMode.FP16) -> Engine:
    engine = Engine(table)
    engine.directive = mode
    return drive(engine, requests)


def test_a_request_alone_takes_one_prefill_step_and_one_step_a_token():
    (request,) = make_requests((2.0, 100, 4))
    engine = serve(make_table(), [request])
    prefill_s = FP16.step_s(100, 0, 0) + CHUNK_S
    decode_s = sum(FP16.step_s(1, 1, 100 + generated) for generated in range(3))
    assert request.first_s == pytest.approx(2.0 + prefill_s)
    assert request.finished_s == pytest.approx(2.0 + prefill_s + decode_s)
    assert request.ttft_ms == pytest.approx(prefill_s * 1e3)
    assert request.tpot_ms == pytest.approx(decode_s / 3 * 1e3)
    assert (engine.stats.steps, engine.stats.tokens) == ({Mode.FP16: 4, Mode.FP8: 0}, {Mode.FP16: 103, Mode.FP8: 0})


def test_fp8_steps_cost_what_the_fp8_model_says():
    (request,) = make_requests((0.0, 1000, 1))
    serve(make_table(), [request], DirectiveMode.FP8)
    assert request.finished_s == pytest.approx(FP8.step_s(1000, 0, 0) + CHUNK_S)
    assert (request.prompt_fp8, request.completion_fp8, request.prompt_fp16) == (1000, 1, 0)


@pytest.mark.parametrize("ahead", [False, True])
def test_decodes_come_before_prompts_and_a_step_filled_ahead_sees_arrivals_later(ahead: bool):
    requests = make_requests((0.0, 16, 50), (0.005, 4000, 2))
    engine = Engine(make_table(async_scheduling=ahead))
    engine.add(0.0, requests[0])
    engine.advance(0.005)
    engine.add(0.005, requests[1])
    if ahead:
        engine.advance(engine.ends_s)  # the second step was filled when the first began
        assert requests[1].computed == 0
    engine.advance(engine.ends_s)  # one decode and a chunk that fills the budget
    assert requests[1].computed == 2047


def test_pins_and_step_rule_decide_like_the_live_engine():
    rule = StepRule(fp8_budget_fraction=0.25)
    engine = Engine(make_table())
    engine.directive, engine.rule = DirectiveMode.AUTO, rule
    small, large = make_requests((0.0, 100, 3), (1.0, 1000, 3))
    pinned = SimRequest(2, 2.0, 1000, 3, pinned=True)
    drive(engine, (small, large, pinned))
    assert (small.prompt_fp16, small.prompt_fp8) == (100, 0)
    assert (large.prompt_fp16, large.prompt_fp8, large.completion_fp8) == (0, 1000, 1)  # decodes are small steps
    assert (pinned.prompt_fp16, pinned.prompt_fp8) == (1000, 0)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_step_filled_ahead_is_planned_without_knowledge_of_those_who_came_since(ahead: bool):
    engine = Engine(make_table(async_scheduling=ahead))
    engine.direct(DirectiveMode.AUTO, StepRule(ttft_deadline_s=0.06, tpot_deadline_s=0.05))
    first, *burst = make_requests((0.0, 100, 50), (0.005, 300, 2), (0.006, 300, 2))
    engine.add(0.0, first)
    for request in burst:  # during the first step, which takes 10.1 ms
        engine.advance(request.arrived_s)
        engine.add(request.arrived_s, request)
    engine.advance(0.011)
    assert len(engine.waiting) == (2 if ahead else 0)
    engine.advance(0.021)
    assert not engine.waiting
