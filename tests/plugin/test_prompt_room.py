"""How many prompt tokens an engine can take: by the pure rule, and as the plugin's real scheduler says it."""

import time
from math import inf

import pytest
from vllm_parts import MODEL, Engine, engine_request

from deploy.agent.room_page import room_page
from nestedfp.modes import Mode
from nestedfp.steps.prompt_room import LATE_SHARE, USUAL_MARGIN, RoomMargin
from nestedfp.steps.step_costs import StepCost, StepCosts
from nestedfp.steps.step_rule import StepRule
from nestedfp.steps.step_times import LEAST_CHUNK_TOKENS
from nestedfp.steps.step_watch import StepWatch
from nestedfp.vllm_plugin.scheduling.deadline_watch import next_due_s

# A step takes 5 ms, and in FP16 0.1 ms a token, in FP8 half of that.
COSTS = StepCosts((StepCost(1, 5.1, 5.05), StepCost(4096, 5 + 409.6, 5 + 204.8)))
RULE = {"exact_step_s": 0.03, "room_ttft_s": 0.165}
TAKEN_S = RoomMargin().within(Mode.FP16, RULE["room_ttft_s"])  # by an engine that has learnt nothing


def room(mode=Mode.FP16, *, ttft_s=0.165, decodes=0, line_tokens=0, busy_s=0.0, slack_s=inf, rows_per_s=(0.0, 0.0)):
    """The room for first tokens within so many seconds, in steps of 30 ms."""
    rule = StepRule(exact_step_s=0.03, room_ttft_s=ttft_s / (1 - USUAL_MARGIN))
    given = {"decodes": decodes, "line_tokens": line_tokens, "ends_s": busy_s, "slack_s": slack_s}
    given["rows_per_s"] = rows_per_s
    return StepWatch(2048, COSTS).room(rule, mode, 0.0, **given)


def test_an_idle_engine_takes_what_it_computes_in_the_time_that_is_left():
    empty = room()
    assert empty.tokens_per_s == pytest.approx(250 / 0.03, rel=0.01)  # 250 tokens in a step of 30 ms
    assert empty.tokens == empty.full_tokens == pytest.approx(empty.tokens_per_s * 0.135, rel=0.01)
    assert room(Mode.FP8).tokens > 1.5 * empty.tokens


def test_what_is_in_line_what_runs_and_what_decodes_takes_room():
    empty = room()
    assert room(line_tokens=500).tokens == empty.tokens - 500
    assert room(busy_s=0.03).tokens == pytest.approx(empty.tokens - 0.03 * empty.tokens_per_s, abs=2)
    assert room(decodes=100).tokens_per_s == pytest.approx(150 / 0.03, rel=0.01)
    assert room(line_tokens=5000).tokens < 0


def test_decodes_without_time_for_a_step_with_a_prompt_leave_no_room():
    assert room(slack_s=0.029).tokens == 0
    assert room(slack_s=0.031).tokens == room().tokens


def test_an_engine_whose_every_step_is_too_long_still_computes_some_of_a_prompt():
    assert room(decodes=290).tokens_per_s == pytest.approx(LEAST_CHUNK_TOKENS / (0.005 + 0.0322), rel=0.01)
    full = room(decodes=2048)
    assert (full.tokens, full.tokens_per_s) == (0, 0.0)


def learnt(late_share, prompts=20_000, line_tokens=100, mode=Mode.FP16):
    """What is left of a second once that share of the prompts, spread evenly, has come late."""
    margin, late = RoomMargin(), 0
    margin.said(mode, 1.0, room(mode))
    for number in range(prompts):
        is_late = late < late_share * number
        late += is_late
        if margin.takes(line_tokens):
            margin.first_token(1.1 if is_late else 0.9)
    return margin.within(Mode.FP16, 1.0)


def test_the_margin_rises_while_more_prompts_are_late_than_may_be_and_falls_while_fewer_are():
    assert learnt(0) == 1.0
    assert learnt(0.7 * LATE_SHARE) > 1 - USUAL_MARGIN > learnt(1.3 * LATE_SHARE)
    assert learnt(0.1) == pytest.approx(0.5, abs=0.01), "half of the time is kept free at most"


def test_prompts_that_there_was_no_room_for_and_those_of_fast_engines_teach_nothing():
    usual = 1 - USUAL_MARGIN
    assert learnt(1.0, line_tokens=100_000) == learnt(1.0, mode=Mode.FP8) == pytest.approx(usual)
    margin = RoomMargin()
    assert not margin.takes(10)
    margin.first_token(9.0)
    assert margin.within(Mode.FP16, 1.0) == margin.within(Mode.FP8, 1.0) == pytest.approx(usual), (
        "no room was asked for"
    )


def measured_engine(**arguments):
    made = Engine(max_num_seqs=64, max_num_batched_tokens=2048, **arguments)
    made.scheduler.nestedfp_take_step_costs([COSTS.report()])
    return made


@pytest.fixture
def engine():
    return measured_engine()


@pytest.fixture
def drafting():
    """An engine that verifies three drafts of a request in a step."""
    return measured_engine(speculative_config={"method": "eagle", "model": str(MODEL), "num_speculative_tokens": 3})


def test_exact_steps_hold_what_fits_into_their_time_and_others_the_whole_budget(engine):
    engine.direct("fp16", **RULE)
    for number in range(9):
        engine.add(engine_request(f"long-{number}", 900, cache_salt=f"{number}"))
    first = engine.schedule()
    assert first.total_num_scheduled_tokens == pytest.approx(250, abs=2)
    engine.finish(first)
    for mode, rule in (("fp8", RULE), ("auto", RULE), ("fp16", {})):
        engine.direct(mode, **rule)
        step = engine.schedule()
        assert step.total_num_scheduled_tokens == 2048, mode
        engine.finish(step)


def test_decodes_go_on_beside_the_prompts_of_exact_steps(engine):
    engine.direct("fp16", **RULE)
    for number in range(20):
        engine.add(engine_request(f"d{number}", 4, max_tokens=50))
    engine.step()
    engine.add(engine_request("long", 900))
    step = engine.schedule()
    assert len(step.num_scheduled_tokens) == 21
    # The last step took less or more than its cost, which the next one has learned from.
    assert LEAST_CHUNK_TOKENS <= step.num_scheduled_tokens["long"] < 300


def test_drafts_are_rows_of_exact_steps_and_leave_room_for_some_of_a_prompt(drafting):
    drafting.direct("fp16", **RULE)
    for number in range(60):
        drafting.add(engine_request(f"d{number}", 4, max_tokens=50))
    drafting.step()
    drafting.add(engine_request("long", 900))
    step = drafting.schedule()
    assert step.total_num_scheduled_tokens == 60 * (1 + 3) + step.num_scheduled_tokens["long"]
    assert step.num_scheduled_tokens["long"] >= LEAST_CHUNK_TOKENS


def test_a_request_whose_drafts_are_accepted_has_until_its_later_tokens_are_due(drafting):
    request = drafting.add(engine_request("a", 4, max_tokens=50))
    drafting.step()
    for accepted in (3, 0, 2):
        before_s = next_due_s(request, 0.05, 0, 0.0)
        drafting.finish(drafting.schedule(), accepted={"a": accepted})
        assert next_due_s(request, 0.05, 0, 0.0) - before_s == pytest.approx(0.05 * (1 + accepted))


def test_the_engine_tells_its_room_where_the_rule_asks(engine):
    stats = engine.scheduler.nestedfp_stats()
    assert (stats["room"], stats["exact_tokens_per_s"], stats["fast_tokens_per_s"]) == (None, None, None)
    engine.direct("fp16", **RULE)
    empty = engine.scheduler.nestedfp_stats()
    assert empty["room"]["tokens"] == room(ttft_s=TAKEN_S).tokens
    assert empty["fast_tokens_per_s"] > 1.9 * empty["exact_tokens_per_s"] > 0
    engine.add(engine_request("waits", 600))
    assert engine.scheduler.nestedfp_stats()["room"]["tokens"] == room(ttft_s=TAKEN_S).tokens - 600
    engine.direct("auto", **RULE)
    assert engine.scheduler.nestedfp_stats()["room"]["tokens"] == room(Mode.FP8, ttft_s=TAKEN_S).tokens - 600


def test_an_exact_engine_takes_less_once_first_tokens_have_come_late(clocks, engine):
    engine.direct("fp16", **RULE)
    before = engine.scheduler.nestedfp_stats()["room"]["full_tokens"]
    for ago_s in (0.0, 0.5):
        for number in range(6):
            request = engine_request(f"r{ago_s}-{number}", 20)
            request.arrival_time = time.time() - ago_s
            engine.add(request)
            while engine.scheduler.running or engine.scheduler.waiting:
                clocks.pass_(0.001)
                engine.step()
        left = engine.scheduler.nestedfp_stats()["room"]["full_tokens"]
        assert (left < 0.8 * before) == (ago_s > 0), left


def test_an_engine_says_its_load_and_that_of_pinned_requests_as_shares_of_what_exact_steps_compute(clocks, engine):
    found = room(rows_per_s=(5000.0, 2500.0))
    assert (found.load_share, found.pinned_share) == pytest.approx((5000 / (250 / 0.03), 2500 / (250 / 0.03)), rel=0.01)
    engine.direct("auto", ttft_deadline_s=0.1, tpot_deadline_s=0.03, **RULE)

    def shares():
        said = engine.scheduler.nestedfp_stats()["room"]
        return said["load_share"], said["pinned_share"]

    def shares_after(request):
        engine.add(request)
        while engine.scheduler.running or engine.scheduler.waiting:
            clocks.pass_(0.01)
            engine.step()
        return shares()

    load, pinned = shares_after(engine_request("other", 200))
    assert load > pinned == 0.0
    load, pinned = shares_after(engine_request("pinned", 200, extra_args={"precision": "fp16"}))
    assert load > pinned > 0.0
    clocks.pass_(10.0)
    assert shares() == pytest.approx((0.0, 0.0), abs=0.1 * pinned)


def test_the_page_says_the_class_and_the_room():
    said = {"tokens": -3, "full_tokens": 1100, "tokens_per_s": 8333.33, "load_share": 1.5, "pinned_share": 0.25}
    said = {"room": said, "directive": "fp16"}
    assert room_page("fp16", said, 0.05).body == b"exact -3 1100 8333.3 1.500 0.250 0.050\n"
    assert room_page("auto", {**said, "directive": "auto"}, 0.05).body.startswith(b"fast ")
    assert room_page("auto", said, 0.05).status == 404, "the engine has not followed yet"
    assert room_page("fp16", {**said, "room": None}, 0.0).status == room_page("fp16", None, 0.0).status == 404
