"""The rule of rows: who is exact and who is fast in a step."""

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestedfp.modes import Mode
from nestedfp.steps.rows.row_rule import RowRule
from nestedfp.steps.rows.row_state import Decode, Prompt, RowState, first_due_s, fullness
from nestedfp.steps.step_costs import MixedCosts, StepCost, StepCosts
from nestedfp.steps.step_times import StepTimes

STEP_S, TTFT_S = 0.03, 0.16
PLAIN = StepCosts((StepCost(1, 16.0, 9.0), StepCost(128, 20.0, 11.0), StepCost(2048, 160.0, 86.0)))
COSTS = replace(PLAIN, mixed=MixedCosts((1, 64), (128, 1024), ((17.0, 50.0), (20.0, 54.0))))
PATIENT = Decode(1.0, is_pinned=False)


def prompt(tokens: int, due_s: float = TTFT_S, *, pinned: bool = False, begun: bool = False) -> Prompt:
    return Prompt(tokens, due_s, is_exact=True, is_pinned=pinned, has_begun=begun)


def state(line=(), exact=(), fast=(), places: int = 100) -> RowState:
    return RowState(0.0, exact, fast, line, places, 2048, STEP_S)


def test_where_nobody_is_late_every_prompt_is_exact_and_the_step_keeps_its_pace():
    times = StepTimes(COSTS)
    plan = RowRule().plan(state([prompt(100), prompt(400)], [PATIENT] * 10), times)
    assert plan.is_whole
    assert [chunk.is_exact for chunk in plan.chunks] == [True, True]
    assert plan.chunks[0].tokens == 100
    assert times.of_rows_s(10 + sum(c.tokens for c in plan.chunks), 0, with_prompts=True) <= 0.9 * STEP_S


def test_a_burst_makes_prompts_fast_and_exact_decodes_sit_out_while_their_slack_lasts():
    times = StepTimes(COSTS)
    line = [prompt(700) for _ in range(4)]
    plan = RowRule().plan(state(line, [PATIENT] * 30), times)
    assert not plan.is_whole
    assert (plan.exact, plan.demoted, plan.reason) == ((), (), "ttft_slack")
    assert not any(chunk.is_exact for chunk in plan.chunks)
    tight = [Decode(0.012, is_pinned=False)] * 30  # the next token must come with this step
    plan = RowRule().plan(state(line, tight), times)
    assert plan.demoted or plan.exact == tuple(range(30))


def test_after_a_demotion_new_prompts_are_fast_for_a_while():
    rule, times = RowRule(), StepTimes(COSTS)
    decodes = [Decode(0.02, is_pinned=i < 2) for i in range(30)]
    burst = [prompt(1000, 0.1) for _ in range(5)]
    plan = rule.plan(state(burst, decodes), times)
    assert plan.reason == "tpot_slack"
    assert set(plan.demoted) == set(range(2, 30)), "pinned ones stay exact"
    calm = state([prompt(200, 0.5)], fast=[PATIENT] * 40)
    assert not rule.plan(replace(calm, now_s=0.1), times).chunks[0].is_exact
    assert rule.plan(replace(calm, now_s=0.3), times).chunks[0].is_exact


def test_an_engine_that_cannot_mix_runs_both_classes_in_fp16_or_one_of_them_alone():
    times = StepTimes(PLAIN)
    plan = RowRule().plan(state(exact=[PATIENT], fast=[PATIENT]), times)
    assert plan.is_whole
    plan = RowRule().plan(state([prompt(700) for _ in range(4)], [PATIENT] * 30), times)
    assert plan.exact == ()
    assert not plan.is_whole


dues = st.one_of(st.floats(-1.0, 2.0), st.sampled_from([inf, -inf]))
decodes = st.lists(st.builds(Decode, dues, st.booleans()), max_size=40)
prompts = st.lists(
    st.builds(Prompt, st.integers(1, 3000), dues, st.booleans(), st.booleans(), st.booleans()), max_size=60
)


@settings(max_examples=150, deadline=None)
@given(exact=decodes, fast=decodes, line=prompts, places=st.integers(0, 20), costs=st.sampled_from([PLAIN, COSTS]))
def test_whatever_comes_pins_hold_and_limits_are_kept_and_somebody_runs(exact, fast, line, places, costs):
    line = sorted(line, key=lambda prompt: not prompt.has_begun)
    plan = RowRule().plan(state(line, exact, fast, places), StepTimes(costs))
    assert not set(plan.exact) & set(plan.demoted)
    assert not any(exact[i].is_pinned for i in plan.demoted)
    assert all(0 < chunk.tokens <= line[chunk.prompt].left_tokens for chunk in plan.chunks)
    assert all(chunk.is_exact or not line[chunk.prompt].is_pinned for chunk in plan.chunks)
    assert all(
        not chunk.is_exact or line[chunk.prompt].is_exact or line[chunk.prompt].is_pinned for chunk in plan.chunks
    )
    assert len({chunk.prompt for chunk in plan.chunks}) == len(plan.chunks)
    assert sum(not line[chunk.prompt].has_begun for chunk in plan.chunks) <= places
    rows = len(plan.exact) + len(plan.demoted) + len(fast) + sum(chunk.tokens for chunk in plan.chunks)
    assert rows <= 2048
    startable = any(prompt.has_begun for prompt in line) or (line and places)
    assert rows > 0 or not (exact or fast or startable)


def test_a_prompt_that_has_missed_its_objective_for_certain_was_due_for_ever():
    assert first_due_s(1.0, TTFT_S, 1.1) == pytest.approx(1.0 + TTFT_S)
    assert first_due_s(1.0, TTFT_S, 2.0) == -inf


class Counting(StepTimes):
    """Counts what it is asked."""

    asked = 0

    def of_rows_s(self, exact_rows: int, fast_rows: int, *, with_prompts: bool) -> float:
        self.asked += 1
        return super().of_rows_s(exact_rows, fast_rows, with_prompts=with_prompts)


def test_a_plan_asks_for_the_time_of_few_steps_whatever_is_in_line():
    random, most = Random(1), 0
    for _ in range(300):
        length, decodes, pinned = random.choice([8, 20, 48, 100]), random.randint(0, 256), random.choice([0, 0.1, 0.5])
        span = random.choice([0.02, 0.16, 0.5, 2.0])
        line = [
            prompt(random.randint(1, 1500), random.uniform(0, span), pinned=random.random() < pinned, begun=i < 3)
            for i in range(length)
        ]
        running = [Decode(random.uniform(-0.01, span), random.random() < pinned) for _ in range(decodes)]
        exact = random.randint(0, decodes)
        times = Counting(COSTS)
        RowRule().plan(state(line, running[:exact], running[exact:]), times)
        most = max(most, times.asked)
    assert 50 < most < 400


class Idle(StepTimes):
    """Has learned that fast steps take no time."""

    def of_rows_s(self, exact_rows: int, fast_rows: int, *, with_prompts: bool) -> float:
        return super().of_rows_s(exact_rows, fast_rows, with_prompts=with_prompts) if exact_rows else 0.0


def test_steps_that_seem_to_take_no_time_harm_nobody():
    line = [prompt(700, -0.01), prompt(9, -0.01)]
    assert RowRule().plan(state(line, [PATIENT] * 3, [PATIENT]), Idle(COSTS)).chunks


def test_a_prompt_with_no_token_left_harms_nobody():
    assert RowRule().plan(state([prompt(0)], [PATIENT]), StepTimes(COSTS)).exact == (0,)


@pytest.mark.parametrize("pinned", [False, True])
def test_an_engine_that_is_behind_computes_all_that_is_not_pinned_fast_in_a_large_step(pinned):
    line = [prompt(400, -inf if i < 3 else 0.1, pinned=pinned and i == 1) for i in range(20)]
    decodes = [Decode(0.05, is_pinned=pinned and i < 3) for i in range(30)]
    plan = RowRule().plan(state(line, decodes), StepTimes(COSTS))
    assert not plan.is_whole
    assert len(plan.exact) == (3 if pinned else 0)
    assert len(plan.exact) + len(plan.demoted) == 30
    assert [chunk.is_exact for chunk in plan.chunks] == [pinned and i == 1 for i in range(len(plan.chunks))]
    assert sum(chunk.tokens for chunk in plan.chunks) > 700


@pytest.mark.parametrize("due_s", [inf, -inf])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_prompt_that_is_not_due_is_computed_all_the_same(pinned, due_s):
    slow = StepCosts(tuple(StepCost(row.tokens, 10 * row.fp16_ms, 10 * row.fp8_ms) for row in PLAIN.rows))
    plan = RowRule().plan(state([prompt(100, due_s, pinned=pinned)], [PATIENT], [PATIENT]), StepTimes(slow))
    assert plan.chunks


def test_near_the_most_that_fast_steps_compute_prompts_are_fast_until_the_load_has_fallen():
    rule, times = RowRule(), StepTimes(COSTS)

    def classes(tokens: int, began_s: float, steps: int = 300) -> list[bool]:
        """Whether the prompts of the last second are exact, where every step brings one that nothing hurries."""
        exact = []
        for now_s in [began_s + i * STEP_S for i in range(steps)]:
            line, fast = [prompt(32, now_s + 1.0)], [Decode(now_s + 1.0, is_pinned=False)] * (tokens - 32)
            plan = rule.plan(replace(state(line, fast=fast), now_s=now_s), times)
            exact += [chunk.is_exact for chunk in plan.chunks]
        assert len(exact) >= 30
        return exact[-30:]

    full = 620  # rows of a fast step that takes STEP_S
    assert times.predicted_s(Mode.FP8, full, with_prompts=True) == pytest.approx(STEP_S, rel=0.1)
    assert all(classes(int(0.4 * full), 0.0))
    assert not any(classes(int(0.8 * full), 10.0))
    assert not any(classes(int(0.65 * full), 19.0)), "it is to fall below the lower share"
    assert all(classes(int(0.3 * full), 28.0))


def test_where_prompts_were_late_an_engine_is_overloaded_sooner():
    rule, times = RowRule(), StepTimes(COSTS)

    def is_exact(began_s: float, *, late: int) -> bool:
        """The class of the last prompt of ten seconds, of which so many in a hundred are late."""
        for i in range(300):
            now_s = began_s + i * STEP_S
            fast = [Decode(now_s + 1.0, is_pinned=False)] * 340
            line = [prompt(32, now_s + (1.0 if i % 100 >= late else -0.01))]
            plan = rule.plan(replace(state(line, fast=fast), now_s=now_s), times)
        return plan.chunks[0].is_exact

    assert is_exact(0.0, late=0)
    assert not is_exact(20.0, late=10)
    assert is_exact(60.0, late=0), "it is careful no more"


@pytest.mark.parametrize(("costs", "rows", "exact"), [
    (PLAIN, 430, False), (COSTS, 430, True),  # 0.7 of what fast steps compute
    (PLAIN, 360, False), (COSTS, 360, True),  # 0.58 of it, and 1.35 of what exact steps do
    (PLAIN, 270, True),
])  # fmt: skip
def test_an_engine_whose_steps_have_one_precision_is_overloaded_sooner(costs, rows, exact):
    rule, times = RowRule(), StepTimes(costs)
    for i in range(300):  # the last step has room
        fast = [Decode((i + 1) * STEP_S + 1.0, is_pinned=False)] * (rows - (32 if i < 299 else 200))
        plan = rule.plan(replace(state([prompt(32, i * STEP_S + 1.0)], fast=fast), now_s=i * STEP_S), times)
    assert plan.chunks[0].is_exact is exact


@pytest.mark.parametrize("costs", [PLAIN, COSTS, None])
def test_an_engine_that_is_full_is_fast_until_it_has_emptied_and_pins_hold(costs):
    rule, times = RowRule(), StepTimes(costs)
    decodes = [Decode(1.0, is_pinned=i < 2) for i in range(30)]

    def exact(fullness: float) -> int:
        return 30 - len(rule.plan(replace(state(exact=decodes), fullness=fullness), times).demoted)

    assert [exact(each) for each in (0.9, 1.1, 0.9, 0.8)] == [30, 2, 2, 30]


@pytest.mark.parametrize(("kv_usage", "inside", "places", "full"), [
    (0.6, 2, 256, False), (0.75, 2, 256, True), (0.9, 1, 256, False), (0.1, 120, 256, False), (0.1, 140, 256, True),
    (0.1, 6, 1, False),
])  # fmt: skip
def test_half_of_the_places_or_most_of_the_kv_cache_are_full(kv_usage, inside, places, full):
    assert (fullness(inside, places, kv_usage) > 1) is full


def test_a_decode_with_drafts_is_so_many_rows():
    times = StepTimes(PLAIN)
    line = [prompt(400, 1.0)]
    alone = RowRule().plan(state(line, [PATIENT] * 20), times)
    drafts = RowRule().plan(replace(state(line, [PATIENT] * 20), decode_rows=4), times)
    assert alone.chunks[0].tokens - drafts.chunks[0].tokens == pytest.approx(3 * 20, abs=16)


@pytest.mark.parametrize(
    ("decodes", "tokens"), [([], [900]), ([PATIENT] * 20, [900]), ([Decode(0.03, False)] * 20, [])]
)
def test_a_prompt_that_cannot_be_cut_waits_for_a_step_that_holds_it_whole(decodes, tokens):
    whole = prompt(900, 1.0)._replace(is_cut=False)
    plan = RowRule().plan(state([whole], decodes), StepTimes(PLAIN))
    assert [chunk.tokens for chunk in plan.chunks] == tokens


def test_an_engine_without_measured_costs_forgets_a_stall():
    times, rule = StepTimes(None), RowRule()
    for took_s, exact in ((0.02, True), (2.0, None), *[(0.02, None)] * 100, (0.02, True)):
        plan = rule.plan(state([prompt(300)]), times)
        assert exact is None or plan.chunks[0].is_exact is exact
        times.rows_took(
            *((300, 0) if plan.is_whole or plan.chunks[0].is_exact else (0, 300)), took_s, with_prompts=True
        )


def test_pinned_decodes_sit_out_a_step_of_an_engine_that_is_behind_while_their_slack_lasts():
    times = StepTimes(COSTS)
    line = [prompt(900, -inf), prompt(900, 0.05)]
    others = [Decode(0.02, is_pinned=False)] * 20
    for due_s, rests in ((1.0, True), (0.05, False)):
        plan = RowRule().plan(state(line, [Decode(due_s, is_pinned=True), *others], [PATIENT] * 5), times)
        assert plan.exact == (() if rests else (0,))
        assert plan.demoted == tuple(range(1, 21))
        assert plan.chunks
    first = [prompt(100, -inf, pinned=True), *line]
    assert RowRule().plan(state(first, [Decode(1.0, is_pinned=True)], [PATIENT] * 5), times).chunks[0].is_exact
