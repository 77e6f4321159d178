"""The simulated engine: conservation, order, KV limits, preemption. Run: python -m pytest tests/simulator/test_sim_engine.py"""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_builders import FP8, FP16, make_requests, make_table

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import EngineTable
from simulator.engine.engine import Engine
from simulator.engine.request import SimRequest

pytestmark = pytest.mark.slow

FOREVER_S = 1e9


def serve(table: EngineTable, requests: Sequence[SimRequest], mode: DirectiveMode = DirectiveMode.FP16) -> Engine:
    engine = Engine(table)
    engine.directive = mode
    for request in requests:
        engine.advance(request.arrived_s)
        engine.add(request.arrived_s, request)
    engine.advance(FOREVER_S)
    return engine


def random_requests(seed: int, count: int, rate_rps: float, longest: int = 1500) -> list[SimRequest]:
    rng, now_s, sizes = random.Random(seed), 0.0, []
    for _ in range(count):
        now_s += rng.expovariate(rate_rps)
        sizes.append((now_s, rng.randint(1, longest), rng.randint(1, 200)))
    return make_requests(*sizes)


def test_a_request_alone_takes_one_prefill_step_and_one_step_a_token():
    (request,) = make_requests((2.0, 100, 4))
    engine = serve(make_table(), [request])
    prefill_s = FP16.step_s(100, 0, 0)
    decode_s = sum(FP16.step_s(1, 1, 100 + generated) for generated in range(3))
    assert request.first_s == pytest.approx(2.0 + prefill_s)
    assert request.finished_s == pytest.approx(2.0 + prefill_s + decode_s)
    assert request.ttft_ms == pytest.approx(prefill_s * 1e3)
    assert request.tpot_ms == pytest.approx(decode_s / 3 * 1e3)
    assert (engine.stats.steps, engine.stats.tokens) == ({Mode.FP16: 4, Mode.FP8: 0}, {Mode.FP16: 103, Mode.FP8: 0})


def test_fp8_steps_cost_what_the_fp8_model_says():
    (request,) = make_requests((0.0, 1000, 1))
    serve(make_table(), [request], DirectiveMode.FP8)
    assert request.finished_s == pytest.approx(FP8.step_s(1000, 0, 0))
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


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), rate=st.sampled_from([5.0, 30.0, 200.0]), kv=st.sampled_from([4000, 20_000, 100_000]))
def test_every_token_is_accounted_for_and_nothing_is_left_behind(seed: int, rate: float, kv: int):
    requests = random_requests(seed, 120, rate)
    table = make_table(kv_tokens=kv)
    engine = Engine(table)
    rng = random.Random(seed)
    for request in requests:
        engine.advance(request.arrived_s)
        assert 0 <= engine.used_blocks <= engine.total_blocks
        engine.direct(rng.choice([DirectiveMode.FP16, DirectiveMode.FP8]), StepRule())
        engine.add(request.arrived_s, request)
    while engine.ends_s < FOREVER_S:
        engine.advance(engine.ends_s)
        assert 0 <= engine.used_blocks <= engine.total_blocks
        assert len(engine.running) <= table.engine.max_num_seqs
    for request in requests:
        assert request.outcome == "finished"
        assert request.prompt_fp16 + request.prompt_fp8 == request.prompt_tokens
        assert request.completion_fp16 + request.completion_fp8 == request.output_tokens
        assert request.arrived_s < request.first_s <= request.finished_s
    needed = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    assert sum(engine.stats.tokens.values()) >= needed
    if engine.preemptions == 0:
        assert sum(engine.stats.tokens.values()) == needed
    assert (engine.used_blocks, engine.waiting_tokens, len(engine.running), len(engine.waiting)) == (0, 0, 0, 0)
    assert engine.ongoing == 0


def test_pins_and_step_rule_decide_like_the_live_engine():
    rule = StepRule(fp8_budget_fraction=0.25)
    engine = Engine(make_table())
    engine.directive, engine.rule = DirectiveMode.AUTO, rule
    small, large = make_requests((0.0, 100, 3), (1.0, 1000, 3))
    pinned = SimRequest(2, 2.0, 1000, 3, pinned=True)
    for request in (small, large, pinned):
        engine.advance(request.arrived_s)
        engine.add(request.arrived_s, request)
    engine.advance(FOREVER_S)
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
