"""error_budget: burn rates against the definition, the quality budget, and the ring that both count in."""

from typing import Any

import pytest
from controller_builders import make_rates, make_view
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from controller.policies import error_budget
from controller.policies.base import Decision, Observation
from controller.policies.error_budget import BurnWindow, ErrorBudget
from controller.policies.signals.ring import Ring
from nestedfp.modes import DirectiveMode, Mode

FP16, FP8 = DirectiveMode.FP16, DirectiveMode.FP8


def run(
    config: ErrorBudget, phases: list[tuple[float, dict[str, Any]]], current: DirectiveMode = FP16
) -> list[tuple[float, Decision]]:
    """Play phases of (seconds, view); the directive follows the decisions. Returns the changes of reason."""
    _, state = error_budget.start(config)
    now_s, changes, last = 0.0, list[tuple[float, Decision]](), ""
    for seconds, view in phases:
        for _ in range(round(seconds * 5)):
            mode = Mode(current.value)
            served = make_rates(
                **{f"tokens_{mode.value}_per_s": 1200.0, f"tokens_{other(mode).value}_per_s": 0.0, **view["rates"]}
            )
            replica = make_view(
                **{"mode": mode, "step_ms_fp16": 10.0, "step_ms_fp8": 8.0, **view.get("snapshot", {}), "rates": served}
            )
            decision, state = error_budget.decide(Observation(now_s, (replica,), current), state, config)
            current = decision.mode
            if decision.reason != last:
                changes.append((now_s, decision))
                last = decision.reason
            now_s += 0.2
    return changes


def other(mode: Mode) -> Mode:
    return Mode.FP8 if mode is Mode.FP16 else Mode.FP16


def judged(per_s: float, missed: float) -> dict[str, Any]:
    return {"rates": {"slo_evaluated_per_s": per_s, "within_slo_per_s": per_s * (1 - missed)}}


def test_a_fast_burn_enters_once_the_long_window_has_burned_too() -> None:
    # 12 % misses against a budget of 1 % burn 12 times too fast: the minute's mean passes 6 after half of it.
    changes = run(
        ErrorBudget(slow=BurnWindow(long_s=600, short_s=60, burn=50)), [(60, judged(10, 0)), (60, judged(10, 0.12))]
    )
    assert [decision.reason for _, decision in changes][:2] == ["within_error_budget", "fast_burn"]
    assert changes[1][0] == pytest.approx(90, abs=3)
    assert changes[1][1].mode is FP8


def test_a_slow_burn_enters_by_the_slow_window() -> None:
    changes = run(ErrorBudget(), [(600, judged(10, 0)), (600, judged(10, 0.04))])
    assert [decision.reason for _, decision in changes][:2] == ["within_error_budget", "slow_burn"]
    assert changes[1][0] == pytest.approx(900, abs=15)


def test_misses_within_the_budget_change_nothing() -> None:
    changes = run(ErrorBudget(), [(900, judged(10, 0.009))])
    assert [decision.reason for _, decision in changes] == ["within_error_budget"]


def test_requests_in_danger_count_before_they_have_missed() -> None:
    stuck = {
        "rates": {"slo_evaluated_per_s": 1.0, "within_slo_per_s": 1.0},
        "snapshot": {"oldest_wait_s": 2.0, "waiting": 50},
    }
    changes = run(ErrorBudget(), [(60, judged(1, 0)), (2, stuck)])
    assert (changes[1][0], changes[1][1].reason) == (pytest.approx(60, abs=0.3), "fast_burn")


def test_fp8_is_kept_while_it_burns_and_left_after() -> None:
    changes = run(ErrorBudget(), [(60, judged(10, 0.5)), (200, judged(10, 0))])
    reasons = [decision.reason for _, decision in changes]
    assert reasons[:2] == ["within_error_budget", "fast_burn"]
    assert "still_burning" in reasons
    assert (reasons[-1], changes[-1][1].mode) == ("within_error_budget", FP16)
    assert "fp16_would_hold_slo" in reasons


def test_the_quality_budget_ends_fp8_and_refills() -> None:
    config = ErrorBudget(max_fp8_share=0.25)
    changes = run(config, [(1500, judged(10, 0.5)), (4000, judged(10, 0))])
    reasons = [(round(at_s), decision.reason) for at_s, decision in changes]
    spent_s = next(at_s for at_s, reason in reasons if reason == "fp8_budget_spent")
    assert spent_s == pytest.approx(900, abs=30)  # a quarter of an hour
    at_spent = next(decision for _, decision in changes if decision.reason == "fp8_budget_spent")
    assert (at_spent.mode, at_spent.rule.fp8_wait_s) == (FP16, None)
    # FP8 leaves the hour after an hour: then the share falls below nine tenths of the cap.
    refilled_s = next(at_s for at_s, reason in reasons if at_s > spent_s and reason != "fp8_budget_spent")
    assert refilled_s == pytest.approx(3600 + 0.1 * 900, abs=90)


def test_without_a_cap_fp8_may_last() -> None:
    changes = run(ErrorBudget(max_fp8_share=None), [(2400, judged(10, 0.5))])
    assert changes[-1][1].mode is FP8


@pytest.mark.parametrize(
    "parameters",
    [
        {"objective": 1.0},
        {"leave_burn": 2.0},
        {"fast": {"long_s": 5, "short_s": 60, "burn": 6}},
        {"slow": {"long_s": 10**6, "short_s": 60, "burn": 6}},
        {"max_fp8_share": 0},
        {"objektive": 0.9},
        {"leave_burn": float("nan")},
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ErrorBudget.model_validate(parameters)


events = st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0, 2.5, 7.0, 100.0]), st.integers(0, 9)), max_size=40)


@given(events, st.sampled_from([1, 3, 10]))
def test_a_ring_sums_what_a_list_would(events: list[tuple[float, int]], span: int) -> None:
    ring, now_s, seen = Ring(1.0, 10), 5.0, list[tuple[float, int]]()
    for pause_s, count in events:
        now_s += pause_s
        ring = ring.add(now_s, count, 2 * count)
        seen.append((now_s, count))
        expected = sum(count for at_s, count in seen if int(at_s) >= int(now_s) - span)
        assert ring.over(span) == (expected, 2 * expected)
        assert len(ring.past) <= 10


def test_a_ring_takes_time_that_runs_backwards_for_standing_still() -> None:
    ring = Ring(1.0, 5).add(10.0, 1, 1).add(3.0, 1, 0).add(10.5, 1, 0)
    assert ring.over(5) == (3, 1)
    assert ring.span_s == 0.5
