"""The simulated engine under the rule of rows."""

import random
from pathlib import Path

import pytest
from sim_builders import drive, make_requests, make_table

from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from simulator.engine import cost_table
from simulator.engine.cost_table import StepTimeModel
from simulator.engine.engine import Engine

ROWS = StepRule(ttft_deadline_s=0.08, tpot_deadline_s=0.02, tpot_grace_tokens=2)
DIRECTIVES = [
    (DirectiveMode.AUTO, ROWS),
    (DirectiveMode.FP16, StepRule()),
    (DirectiveMode.FP16, StepRule(exact_ttft_deadline_s=0.1, exact_tpot_deadline_s=0.02)),
    (DirectiveMode.FP8, StepRule()),
]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("kv_tokens", [6000, 100_000])
@pytest.mark.parametrize("others", [0.0, 0.03])
def test_every_token_is_counted_once_and_pinned_requests_are_exact(ahead: bool, kv_tokens: int, others: float):
    mixed = preempted = 0
    for seed in range(2):
        rng, now_s, sizes = random.Random(seed), 0.0, []
        for _ in range(120):
            now_s += rng.expovariate(40.0)
            sizes.append((now_s, rng.randint(1, 1500), rng.randint(1, 60)))
        requests = make_requests(*sizes)
        engine = Engine(make_table(kv_tokens=kv_tokens, async_scheduling=ahead, mixed_steps=True))
        engine.direct(*DIRECTIVES[0])
        for request in requests:
            request.pinned = not others and rng.random() < 0.2
            engine.advance(request.arrived_s)
            assert 0 <= engine.used_blocks <= engine.total_blocks
            if rng.random() < others:
                engine.direct(*rng.choice(DIRECTIVES))
            engine.add(request.arrived_s, request)
        engine.direct(*DIRECTIVES[0])
        engine.advance(1e9)
        assert not engine.busy
        assert engine.used_blocks == engine.waiting_tokens == engine.ongoing == 0
        computed = 0
        for request in requests:
            fp8 = request.prompt_fp8 + request.completion_fp8
            assert request.outcome == "finished"
            assert request.arrived_s < request.first_s <= request.finished_s
            assert request.prompt_fp16 + request.prompt_fp8 == request.prompt_tokens
            assert request.completion_fp16 + request.completion_fp8 == request.output_tokens
            assert not (request.pinned and fp8), "a pinned request in FP8"
            assert request.is_fast == (fp8 > 0) or request.preemptions or others
            computed += request.prompt_tokens + request.output_tokens - 1
        assert sum(engine.stats.tokens.values()) >= computed
        preemptions = sum(request.preemptions for request in requests)
        assert sum(engine.stats.tokens.values()) == computed or preemptions
        mixed += engine.stats.steps_mixed
        preempted += preemptions
    assert mixed or kv_tokens == 6000
    assert (preempted > 0) == (kv_tokens == 6000)


TABLE = Path(cost_table.__file__).parent / "tables" / "h100-mistral-24b-load.json"
OVERLOADED = StepRule(ttft_deadline_s=0.16, tpot_deadline_s=0.0315, tpot_grace_tokens=3)


def drained_s(directive: DirectiveMode, rule: StepRule, pinned_share: float) -> float:
    """How long 100 prompts that come to a busy engine at once wait for their first tokens, while 19 more come a second."""
    table, rng = cost_table.read_table(TABLE), random.Random(1)
    engine = Engine(table.model_copy(update={"engine": table.engine.model_copy(update={"mixed_steps": True})}))
    engine.direct(directive, rule)
    queued = [i / 15 for i in range(45)] + [3.0] * 100 + [3.0 + i / 19 for i in range(1, 96)]
    requests = make_requests(*[(at_s, rng.randint(50, 700), rng.randint(20, 150)) for at_s in queued])
    piled = requests[45:145]
    for i, request in enumerate(piled):
        request.arrived_s -= 2.0 - i / 50
    for request, at_s in zip(requests, queued, strict=True):
        request.pinned = rng.random() < pinned_share
        engine.advance(at_s)
        engine.add(at_s, request)
    engine.advance(1e9)
    assert not any(r.pinned and r.prompt_fp8 + r.completion_fp8 for r in requests)
    return max(r.first_s for r in piled) - 3.0


def test_a_line_that_has_piled_up_drains_about_as_fast_as_in_fp8():
    fp8_s = drained_s(DirectiveMode.FP8, StepRule(), 0.0)
    assert drained_s(DirectiveMode.AUTO, OVERLOADED, 0.0) < 1.1 * fp8_s
    assert drained_s(DirectiveMode.AUTO, OVERLOADED, 0.1) < 1.3 * fp8_s, "a tenth of the tokens in FP16"


def in_the_slo(directive: DirectiveMode, per_s: float) -> tuple[float, float]:
    """Shares of requests in the SLO (190 ms in the engine, 33.3 ms) and of exact ones, about as the 70B shape on two GPUs."""
    fp16, fp8 = (
        StepTimeModel(
            fixed_ms=fixed, per_token_us=token, knee_tokens=knee, over_knee_us=over, per_decode_us=8, per_kv_token_ns=64
        )
        for fixed, token, knee, over in ((28.2, 56.5, 256, 61.8), (17.0, 36.6, 192, 34.3))
    )
    engine = Engine(make_table(fp16, fp8, max_num_seqs=256, kv_tokens=17_878, mixed_steps=True))
    engine.direct(directive, StepRule(ttft_deadline_s=0.16, tpot_deadline_s=0.03, tpot_grace_tokens=3))
    rng, now_s, sizes = random.Random(3), 0.0, []
    for _ in range(int(120 * per_s)):
        now_s += rng.expovariate(per_s)
        sizes.append((now_s, rng.randint(50, 750), rng.randint(20, 150)))
    requests = make_requests(*sizes)
    drive(engine, requests)
    kept = [r.ttft_ms <= 190 and (r.tpot_ms or 0) <= 33.3 for r in requests]
    exact = [r.prompt_fp8 + r.completion_fp8 == 0 for r in requests]
    return sum(kept) / len(kept), sum(exact) / len(exact)


def test_where_an_exact_step_leaves_no_room_a_loaded_engine_keeps_as_many_in_the_slo_as_fp8():
    fp8, _ = in_the_slo(DirectiveMode.FP8, 6.0)
    rows, _ = in_the_slo(DirectiveMode.AUTO, 6.0)
    assert rows > fp8 - 0.005
    _, exact = in_the_slo(DirectiveMode.AUTO, 0.8)
    assert exact > 0.15, "and a quiet one has exact answers"
