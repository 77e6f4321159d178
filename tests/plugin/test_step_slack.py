"""What is left of deadlines: against a walk over every request, and by hand."""

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.deadlines.prompt_line import PromptLine, PromptLines
from nestedfp.steps.deadlines.step_slack import DecodeHeap, StepSlack
from nestedfp.steps.deadlines.step_watch import StepWatch
from nestedfp.steps.step_costs import StepCost, StepCosts
from nestedfp.steps.step_rule import StepRule, StepSignals, choose
from nestedfp.steps.step_times import StepTimes

S_PER_TOKEN = 1e-3
COSTS = StepCosts((StepCost(1, 10.0, 6.0), StepCost(100, 20.0, 12.0)))


@dataclass
class Walk:
    """The same by looking at every request: what the constants stand for."""

    line: list[tuple[str, float, int]] = field(default_factory=list)  # name, arrived_s, tokens
    computed: dict[str, int] = field(default_factory=dict)
    decoding: dict[str, tuple[float, int]] = field(default_factory=dict)  # first_s, tokens so far

    def latest_start_s(self, ttft_s: float) -> float:
        ahead, latest = 0, inf
        for name, arrived_s, tokens in self.line:
            ahead += tokens - self.computed.get(name, 0)
            latest = min(latest, arrived_s + ttft_s - ahead * S_PER_TOKEN)
        return latest

    def latest_end_s(self, tpot_s: float) -> float:
        return min((first_s + tpot_s * tokens for first_s, tokens in self.decoding.values()), default=inf)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "compute", "first_token", "abort", "step", "step", "finish", "deadline"]),
        st.integers(1, 500),
        st.floats(0, 0.5),
    ),
    max_size=120,
)


@given(EVENTS)
@settings(max_examples=200)
def test_the_constants_agree_with_a_walk_over_every_request(events: list[tuple[str, int, float]]) -> None:
    prompts, decodes, walk = PromptLine(S_PER_TOKEN), DecodeHeap(), Walk()
    now_s, ttft_s, tpot_s = 0.0, 1.0, 0.05
    for number, (what, size, passed_s) in enumerate(events):
        now_s += passed_s
        name = f"r{number}"
        if what == "arrive":
            prompts.arrived(name, now_s, size)
            walk.line.append((name, now_s, size))
        elif what == "compute" and walk.line:
            first, _, tokens = walk.line[0]
            walk.computed[first] = min(size, tokens - 1)
            prompts.computed(first, walk.computed[first])
        elif what == "first_token" and walk.line:  # always the first in line
            first, _, _ = walk.line.pop(0)
            prompts.left(first)
            decodes.entered(first, now_s)
            walk.decoding[first] = now_s, 1
        elif what == "abort" and walk.line:  # of the last: whoever comes behind one that goes moves up only then
            last, _, _ = walk.line.pop()
            walk.computed.pop(last, None)
            prompts.left(last)
        elif what == "step":
            decodes.stepped()
            walk.decoding = {name: (first_s, tokens + 1) for name, (first_s, tokens) in walk.decoding.items()}
        elif what == "finish" and walk.decoding:
            done = sorted(walk.decoding)[size % len(walk.decoding)]
            del walk.decoding[done]
            decodes.left(done)
        elif what == "deadline":
            ttft_s, tpot_s = 0.1 + passed_s, 0.01 + passed_s / 10
        oldest = min((arrived_s for _, arrived_s, _ in walk.line), default=None)
        assert prompts.oldest_s() == oldest
        assert len(prompts) == len(walk.line)
        assert decodes.latest_end_s(tpot_s) == pytest.approx(walk.latest_end_s(tpot_s))
        if what != "abort" and not any(kind == "abort" for kind, _, _ in events):
            assert prompts.latest_start_s(ttft_s) == pytest.approx(walk.latest_start_s(ttft_s))


def test_one_that_leaves_the_line_early_does_not_make_the_others_look_safer_than_they_are_for_long() -> None:
    line = PromptLine(S_PER_TOKEN)
    for name in "abc":
        line.arrived(name, 0.0, 100)
    line.left("b")
    assert line.latest_start_s(1.0) == pytest.approx(1.0 - 0.2)  # "c" has 100 of "a" and its own before it
    line.left("a")
    assert line.latest_start_s(1.0) == pytest.approx(1.0 - 0.1)


def test_a_request_that_comes_again_counts_as_what_it_is_now() -> None:
    heap = DecodeHeap()
    heap.entered("a", 0.0)
    heap.stepped(10)
    assert heap.latest_end_s(0.1) == pytest.approx(1.1)
    heap.left("a")  # preempted with 11 tokens
    heap.stepped(5)
    heap.entered("a", 0.0, tokens=12)
    assert heap.latest_end_s(0.1) == pytest.approx(1.2)
    assert len(heap) == 1


def held_by(part: object) -> int:
    """Entries in all containers of an object and of those in them."""
    held = [value for value in vars(part).values() if hasattr(value, "__len__")]
    lines = part._lines.values() if isinstance(part, PromptLines) else ()
    return sum(len(each) for each in held) + sum(held_by(line) for line in lines)


@pytest.mark.parametrize("s_per_token", [0.0, 1e-5, S_PER_TOKEN])  # nothing measured; less than there is time for; more
@pytest.mark.parametrize("starving", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_nothing_grows_with_the_requests(s_per_token: float, starving: bool, asked: bool) -> None:
    slack = StepSlack(s_per_token)
    if starving:
        slack.prompts.arrived("starves", 0.0, 100)
    for number in range(5000):
        slack.prompts.arrived(number, 0.02 * number, 100, number % 2)
        slack.prompts.left(number)
        slack.decodes.entered(number, float(number))
        slack.decodes.stepped()
        slack.left(number - 3)
        if asked:
            slack.late(RULE, ends_s=float(number))
    assert len(slack.prompts) == starving
    assert max(held_by(slack.prompts), held_by(slack.decodes)) < 300
    assert slack.decodes.latest_end_s(1.0) == pytest.approx(4997.0 + 4)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "arrive", "compute", "first_token", "price"]),
            st.integers(1, 500),
            st.integers(-2, 2),
            st.floats(0, 0.5),
        ),
        max_size=80,
    )
)
@settings(max_examples=200)
def test_the_lines_of_all_priorities_agree_with_a_walk_over_every_request(events: list[tuple]) -> None:
    lines, now_s, ttft_s, s_per_token = PromptLines(S_PER_TOKEN), 0.0, 0.8, S_PER_TOKEN
    waiting: list[tuple[int, int]] = []  # priority, number; each line in its order
    arrived_s, tokens_of, left_tokens = {}, {}, {}
    for number, (what, size, priority, passed_s) in enumerate(events):
        now_s += passed_s
        first = next((each for each in sorted(waiting) if each[0] == priority), None)
        if what == "arrive":
            lines.arrived(number, now_s, size, priority)
            waiting.append((priority, number))
            arrived_s[number], tokens_of[number], left_tokens[number] = now_s, size, size
        elif what == "price":
            s_per_token = size * 1e-5
            lines.price(s_per_token)
        elif what == "compute" and first is not None:
            done = min(size, tokens_of[first[1]])
            lines.computed(first[1], done)
            left_tokens[first[1]] = tokens_of[first[1]] - done
        elif what == "first_token" and first is not None:
            lines.left(first[1])
            waiting.remove(first)
        expected, ahead, seen = inf, 0, set()
        for place, name in sorted(waiting):
            ahead += left_tokens[name]
            expected = min(expected, arrived_s[name] + ttft_s - ahead * s_per_token)
            if place not in seen:  # it may have its first token with the next step
                expected = min(expected, arrived_s[name] + ttft_s)
            seen.add(place)
        assert lines.latest_end_s(ttft_s) == pytest.approx(expected)


def test_a_request_that_waits_anew_is_in_line_once() -> None:
    line = PromptLine(S_PER_TOKEN)
    line.arrived("first", 0.0, 100)
    for since_s in (0.5, 2.0):  # blocked on something else in between
        line.arrived("a", since_s, 100)
    line.left("first")
    assert line.oldest_s() == 2.0
    assert line.latest_start_s(1.0) == pytest.approx(2.9)
    line.left("a")
    line.arrived("b", 5.0, 100)
    assert line.latest_start_s(1.0) == pytest.approx(5.9)


RULE = StepRule(ttft_deadline_s=0.5, tpot_deadline_s=0.02)


def test_a_step_that_leaves_too_little_time_for_the_last_in_line_is_late() -> None:
    slack = StepSlack(S_PER_TOKEN)
    slack.prompts.arrived("a", 10.0, 100)
    slack.prompts.arrived("b", 10.0, 400)
    slack.prompts.computed("a", 100)
    assert slack.late(RULE, ends_s=10.09) != "ttft_slack"  # 400 tokens more by 10.49
    assert slack.late(RULE, ends_s=10.11) == "ttft_slack"
    assert slack.late(StepRule(tpot_deadline_s=0.02), ends_s=99.0) is None


def test_a_step_that_brings_a_mean_above_the_objective_is_late() -> None:
    slack = StepSlack(S_PER_TOKEN)
    slack.decodes.entered("a", 10.0)
    assert slack.late(RULE, ends_s=10.019) is None
    assert slack.late(RULE, ends_s=10.021) == "tpot_slack"
    slack.decodes.stepped()  # a quick one: what it has left is kept
    assert slack.late(RULE, ends_s=10.039) is None
    slack.left("a")
    assert slack.late(RULE, ends_s=99.0) is None


def test_a_mean_above_the_objective_is_forgiven_while_the_tokens_of_grace_would_make_up_for_it() -> None:
    rule = StepRule(tpot_deadline_s=0.02, tpot_grace_tokens=2)
    slack = StepSlack(S_PER_TOKEN)
    slack.decodes.entered("a", 10.0)
    assert slack.late(rule, ends_s=10.059) is None  # the second token, and two more at once: 0.059 s for three
    assert slack.late(rule, ends_s=10.061) == "tpot_slack"
    slack.decodes.stepped()
    assert slack.late(rule, ends_s=10.079) is None  # no new grace for every token
    assert slack.late(rule, ends_s=10.081) == "tpot_slack"


@pytest.mark.parametrize(("share", "requests", "kv_usage", "answer"), [
    (0.5, 4, 0.5, None), (0.5, 5, 0.0, "full"), (0.5, 1, 0.51, "full"), (None, 9, 1.0, None),
])  # fmt: skip
def test_an_engine_more_than_half_full_runs_fp8(share: float, requests: int, kv_usage: float, answer: str) -> None:
    rule = StepRule(ttft_deadline_s=1e6, full_share=share)
    assert StepWatch(2048, 8, COSTS).late(rule, 0.0, 8, requests, kv_usage, with_prompts=True) == answer


def test_what_is_late_runs_fp8_where_fp8_pays() -> None:
    signals = StepSignals(64, has_pinned=False, late="ttft_slack")
    assert choose(signals, DirectiveMode.AUTO, RULE, COSTS).mode is Mode.FP8
    assert choose(signals, DirectiveMode.AUTO, RULE, COSTS).reason == "ttft_slack"
    assert choose(signals, DirectiveMode.FP16, RULE, COSTS).mode is Mode.FP16
    even = StepCosts((StepCost(1, 10.0, 10.0),))
    assert choose(signals, DirectiveMode.AUTO, RULE, even).reason == "no_gain"
    pinned = StepSignals(64, has_pinned=True, late="ttft_slack")
    assert choose(pinned, DirectiveMode.AUTO, RULE, COSTS).mode is Mode.FP16


def test_a_prediction_learns_what_attention_adds_in_either_precision() -> None:
    times = StepTimes(COSTS)
    assert times.predicted_s(Mode.FP16, 100, with_prompts=False) == pytest.approx(0.020)
    for _ in range(50):
        times.took(Mode.FP8, 100, 0.017, with_prompts=False)  # 12 ms measured at the start
    assert times.predicted_s(Mode.FP8, 100, with_prompts=False) == pytest.approx(0.017, rel=1e-3)
    assert times.predicted_s(Mode.FP16, 100, with_prompts=False) == pytest.approx(0.025, rel=1e-3)
    assert times.predicted_s(Mode.FP16, 100, with_prompts=True) == pytest.approx(0.020)
    assert times.s_per_prompt_token(200) == pytest.approx(0.012 / 100)
