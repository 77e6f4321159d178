"""Schedules that know the future. Run: python -m pytest tests/simulator/test_sim_oracle.py"""

import json
from pathlib import Path

import numpy as np
import pytest
from sim_builders import exit_status, make_arrivals, make_requests, make_table, table_file

from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from simulator.engine.cost_table import TABLE, read_table
from simulator.engine.engine import Engine
from simulator.errors import SimulationError
from simulator.search import oracle
from simulator.search.foresight import MissTarget, changed, search
from simulator.search.schedule import GRACE_TOKENS, LEVELS, SLICE_S, Played, Window, constant, play
from simulator.simulation_summary import met
from workload.slo import Slo

SLO = Slo(ttft_ms=150, tpot_ms=50)
NAMES = [level.name for level in LEVELS]
# Two calm stretches with a burst between them that only FP8 gets through.
SIZES = [
    *((0.25 * i, 300, 20) for i in range(8)),
    *((2.0 + 0.022 * i, 1200, 12) for i in range(30)),
    *((3.2 + 0.25 * i, 300, 20) for i in range(8)),
]


@pytest.fixture(scope="module")
def window() -> Window:
    return Window(make_table(), make_arrivals(*SIZES), SLO)


@pytest.fixture(scope="module")
def knee() -> Window:
    """Ten seconds of the 24B shape where FP16 alone misses most: its TPOT objective binds."""
    rng = np.random.default_rng(0)
    at_s = np.cumsum(rng.exponential(1 / 19, 190))
    sizes = zip(at_s.tolist(), rng.integers(50, 750, 190).tolist(), rng.integers(10, 160, 190).tolist(), strict=True)
    table = read_table(TABLE.parent / "h100-mistral-24b-steps.json")
    return Window(table, make_arrivals(*sizes), Slo())


def level(window: Window, name: str) -> Played:
    return play(window, constant(window, NAMES.index(name)))


def directed(mode: DirectiveMode, rule: StepRule) -> tuple[list[bool], float]:
    """The same requests on an engine under one directive: who kept the SLO, and the share of tokens in FP16."""
    engine, requests = Engine(make_table()), make_requests(*SIZES)
    engine.direct(mode, rule)
    for request in requests:
        engine.advance(request.arrived_s)
        engine.add(request.arrived_s, request)
    engine.advance(1e9)
    return [met(request, SLO) for request in requests], engine.stats.tokens[False] / sum(engine.stats.tokens)


@pytest.mark.parametrize(
    ("name", "mode", "rule"),
    [
        ("fp8", DirectiveMode.FP8, StepRule()),
        ("fp16", DirectiveMode.FP16, StepRule()),
        ("0.7, 0.8", DirectiveMode.AUTO, StepRule(ttft_deadline_s=0.105, tpot_deadline_s=0.04, tpot_grace_tokens=GRACE_TOKENS)),
    ],
)  # fmt: skip
def test_a_plan_of_one_level_is_the_engine_under_that_directive(
    window: Window, name: str, mode: DirectiveMode, rule: StepRule
):
    played = level(window, name)
    expected, share = directed(mode, rule)
    assert played.met.tolist() == expected
    assert played.fp16_token_share == pytest.approx(share)


def test_the_burst_is_one_that_fp8_gets_through_and_fp16_does_not(window: Window):
    assert level(window, "fp8").misses == 0
    assert level(window, "fp16").misses > 10


def test_with_prompts_exact_the_later_tokens_are_not(window: Window):
    played = level(window, "prompts")
    prompts = sum(prompt for _, prompt, _ in SIZES)
    assert played.exact_tokens >= prompts  # and first tokens, and others in the steps of somebody else's prompt
    assert 0 < played.fp16_completion_share < 1
    assert played.fp16_token_share < 1


def test_a_plan_holds_slice_by_slice(window: Window):
    plan = bytearray(constant(window, NAMES.index("fp16")))
    plan[round(1.9 / SLICE_S) :] = constant(window, 0)[round(1.9 / SLICE_S) :]
    played = play(window, bytes(plan))
    assert played.exact[:7].tolist() == [320] * 7  # of before
    assert not played.exact[8:].any()  # of after
    assert level(window, "fp8").exact_tokens < played.exact_tokens < level(window, "fp16").exact_tokens


def test_the_search_keeps_its_target_and_is_never_below_a_plan_of_one_level(window: Window):
    targets = [MissTarget("some", 4), MissTarget("none", 0)]
    some, none = search(window, targets, 15, seed=0)
    assert some
    assert none
    assert some.misses <= 4
    assert none.misses == 0
    for name in NAMES:
        played = level(window, name)
        for target, found in zip(targets, (some, none), strict=True):
            assert played.misses > target.misses or played.exact_tokens <= found.exact_tokens
    assert some.exact_tokens >= none.exact_tokens
    assert play(window, none.plan).exact.tolist() == none.exact.tolist()  # it is a schedule, not a sum of parts


@pytest.mark.slow
def test_knowing_the_future_pays_and_the_same_seed_finds_the_same(knee: Window):
    """No level for the whole window does what the search finds."""
    one, other = (search(knee, [MissTarget("some", 5)], 12, seed=0)[0] for _ in range(2))
    assert one
    assert other
    best = max(played.exact_tokens for name in NAMES if (played := level(knee, name)).misses <= 5)
    assert one.misses <= 5
    assert one.exact_tokens > 1.05 * best
    assert other.plan == one.plan
    (another,) = search(knee, [MissTarget("some", 5)], 12, seed=1)
    assert another
    assert another.plan != one.plan


def test_changes_stay_within_the_plan_and_touch_their_spans_only(window: Window):
    plan = constant(window, 3)
    rng = np.random.default_rng(0)
    for _ in range(200):
        places_s = np.array([-2.0, 1.0, window.slices * SLICE_S + 3.0])
        new, spans = changed(plan, places_s, [np.array([]), np.array([1.2]), np.array([99.0])], rng)
        assert len(new) == len(plan)
        inside = {index for begin, end in spans for index in range(begin, end)}
        assert all(0 <= begin < end <= len(plan) for begin, end in spans)
        assert all(new[index] == 3 for index in range(len(plan)) if index not in inside)


def test_where_the_search_finds_nothing_a_policy_that_attains_as_much_is_the_schedule():
    # A prompt of two budgets takes longer than its objective in either precision.
    hopeless = Window(make_table(), make_arrivals((0.0, 4000, 4)), Slo(ttft_ms=1, tpot_ms=20))
    target = MissTarget("x", 0)
    assert search(hopeless, [target], 2, seed=0) == [None]
    row = oracle.Reached(policy="lucky", misses=0, slo_attainment=1, fp16_token_share=0.2, fp16_completion_share=0.1)
    assert oracle._schedule_row(target, None, [row]).found_by == "lucky"
    with pytest.raises(SimulationError, match="--at x: found no schedule that misses 0 requests or fewer; ask for"):
        oracle._schedule_row(target, None, [row.model_copy(update={"misses": 1})])


def test_a_request_longer_than_the_engine_takes_is_refused():
    with pytest.raises(SimulationError, match=r"request 0 has 9000 \+ 4 tokens, more than the 8192"):
        play(Window(make_table(), make_arrivals((0.0, 9000, 4)), SLO), b"\0")


# -- command line ------------------------------------------------------------------------------------------------------


def trace(folder: Path, sizes: list[tuple[float, int, int]]) -> Path:
    path = folder / "trace.csv"
    lines = [f"2023-11-16 18:00:{at_s:010.7f},{prompt},{output}" for at_s, prompt, output in sizes]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    return path


def run(*words: object) -> int:
    return exit_status(oracle.main, *words)


@pytest.fixture
def common(tmp_path: Path) -> tuple[object, ...]:
    section = tmp_path / "section.yaml"
    section.write_text("slo: {ttft_ms: 150, tpot_ms: 50}\n")
    return ("--trace", trace(tmp_path, SIZES), "--table", table_file(tmp_path), "--config", section)


@pytest.mark.slow
def test_the_oracle_is_no_worse_than_any_policy_that_attains_as_much(
    tmp_path: Path, common: tuple[object, ...], capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out.json"
    words = (
        "--policy",
        "deadlines",
        "--policy",
        "token_fraction",
        "--at",
        "static_fp8",
        "--at",
        "deadlines",
        "--at",
        "0.5",
    )
    assert run(*common, *words, "--rounds", 4, "--json", out) == 0
    answer = json.loads(out.read_text())
    policies = {row["policy"]: row for row in answer["policies"]}
    assert list(policies) == ["static_fp8", "static_fp16", "deadlines", "token_fraction"]
    assert [row["policy"] for row in answer["schedules"]] == [
        f"oracle at {name}" for name in ("static_fp8", "deadlines", "0.5")
    ]
    allowed = [policies["static_fp8"]["misses"], policies["deadlines"]["misses"] + len(SIZES) // 10, len(SIZES) // 2]
    for most, row in zip(allowed, answer["schedules"], strict=True):
        assert row["misses"] <= most
        assert row["slo_attainment"] == pytest.approx(1 - row["misses"] / len(SIZES))
        for policy in policies.values():
            assert policy["misses"] > most or policy["fp16_token_share"] <= row["fp16_token_share"]
    assert answer["requests"] == len(SIZES)
    assert "oracle at static_fp8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("static_fp8", 3), ("static_fp8-0.01", 10), ("0.99", 7), ("1", 0), ("0", 760), ("deadlines-1", 760)],
)
def test_an_attainment_is_a_policys_or_less_or_a_share(text: str, allowed: int):
    assert oracle.allowed_misses(text, {"static_fp8": 3, "deadlines": 11}, 760) == allowed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--policy", "slo_auto", "--at", "steered"), "expected one of the policies that run, static_fp8, static_fp16, slo_auto,"),
        (("--at", "1.5"), "got '1.5'"),
        (("--at", "nan"), "got 'nan'"),
        (("--at", "static_fp8-2"), "got 'static_fp8-2'"),
        (("--at", "static_fp8+0.1"), "got 'static_fp8+0.1'"),
        (("--rounds", "0"), "--rounds: expected 1 or more, got 0"),
        (("--policy", "best"), "expected one of static_fp16"),
        (("--pinned-share", "0.1"), "--pinned-share: expected none"),
        (("--load", "0.5", "--load", "0.6"), "--load: expected one, got 2"),
        (("--json", "nowhere/out.json"), "the folder nowhere does not exist"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_said_before_anything_runs(
    common: tuple[object, ...], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
):
    assert run(*common, *words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.slow
def test_requests_that_no_schedule_answers_are_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = trace(tmp_path, [*SIZES, (9.0, 9000, 10)])
    assert run("--trace", path, "--table", table_file(tmp_path)) == 2
    assert "1 requests are longer than the 8192 tokens that the engine takes" in capsys.readouterr().err
