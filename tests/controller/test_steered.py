"""The policy steered: misses make the engines' deadlines stricter, up to FP8; single misses of an idle service move nothing."""

from typing import Any

import pytest
from control_cluster import Cluster, make_loop
from controller_builders import make_rates, make_view
from pydantic import ValidationError

from controller.config import ControllerConfig
from controller.decide.guards import GuardState
from controller.decide.scope import ClusterScope
from controller.fleet.view import ReplicaView
from controller.policies import steered
from controller.policies.base import Decision, Observation
from controller.policies.deadlines import Deadlines
from controller.policies.steered import LENIENT, START, STRICT, State, Steered, rule_at
from controller.protocol import Content
from nestedfp.modes import DirectiveMode
from workload.slo import Slo

AUTO, FP8 = DirectiveMode.AUTO, DirectiveMode.FP8
SLO = Slo(ttft_ms=200.0, tpot_ms=40.0)


def judged(per_s: float, missed_share: float) -> ReplicaView:
    within = per_s * (1 - missed_share)
    return make_view(rates=make_rates(slo_evaluated_per_s=per_s, within_slo_per_s=within))


def see(
    seconds: float, *views: ReplicaView, state: State | None = None, now_s: float = 100.0, **options: Any
) -> tuple[Decision, State]:
    """What is decided when the same has been seen for so long, ten times a second."""
    config = Steered(**options)
    state = state or steered.start(config)[1]
    for tick in range(round(seconds * 10)):
        observation = Observation(now_s + tick / 10, views, current=AUTO, slo=SLO)
        decision, state = steered.decide(observation, state, config)
    return decision, state


def test_the_ends_are_strict_and_lenient_and_the_start_is_near_the_defaults_of_deadlines() -> None:
    assert (rule_at(0.0), rule_at(1.0)) == (STRICT, LENIENT)
    begins, usual = rule_at(START), Deadlines()
    assert begins.ttft_fraction == pytest.approx(usual.ttft_fraction, abs=0.015)
    assert (begins.tpot_fraction, begins.tpot_grace_tokens) == (usual.tpot_fraction, usual.tpot_grace_tokens)


def test_without_misses_the_engines_become_as_lenient_as_they_may_step_by_step() -> None:
    soon = see(6, judged(100, 0.0))[1]
    assert START < soon.leniency <= START + 3 * steered.GRID
    decision, state = see(120, judged(100, 0.0))
    assert (decision.mode, decision.reason, state.leniency) == (AUTO, "slo_holds", 1.0)
    assert decision.rule == LENIENT.rule_for(SLO)
    assert decision.rule.ttft_deadline_s == pytest.approx(0.75 * 0.2)


@pytest.mark.parametrize(("missed_share", "leniency"), [(0.005, 1.0), (0.01, 2 / 3), (0.0125, 0.5), (0.0185, 0.1)])
def test_at_a_constant_share_of_misses_the_leniency_comes_to_where_the_droop_says_and_stays(
    missed_share: float, leniency: float
) -> None:
    _, state = see(600, judged(100, missed_share))
    assert state.leniency == pytest.approx(leniency, abs=0.05)
    seen = set()
    for minute in range(5):
        decision, state = see(60, judged(100, missed_share), state=state, now_s=700.0 + 60 * minute)
        seen.add(state.leniency)
    assert len(seen) == 1
    assert decision.rule == rule_at(state.leniency).rule_for(SLO)


def test_another_target_moves_the_line() -> None:
    assert see(600, judged(100, 0.04), target_miss_share=0.08)[1].leniency == 1.0
    assert see(600, judged(100, 0.004), target_miss_share=0.002)[1].leniency == 0.0


def test_many_misses_run_all_steps_in_fp8_within_seconds_and_are_forgotten_within_a_minute_or_two() -> None:
    decision, high = see(20, judged(20, 0.5))
    assert (decision.mode, decision.reason, high.leniency) == (FP8, "too_many_misses", 0.0)
    _, high = see(300, judged(20, 0.5), state=high, now_s=120.0)
    decision, soon = see(20, judged(20, 0.0), state=high, now_s=420.0)
    assert decision.mode is AUTO, "five minutes of misses would outlive twenty seconds, were they all kept"
    assert 0 < soon.leniency < 0.3
    assert see(110, judged(20, 0.0), state=soon, now_s=430.0)[1].leniency == 1.0


def test_an_overload_that_goes_on_stays_in_fp8_whatever_single_seconds_bring() -> None:
    _, state = see(60, judged(20, 0.3))
    modes = set()
    for second in range(120):
        decision, state = see(1, judged(20, 0.3 if second % 6 == 0 else 0.0), state=state, now_s=160.0 + second)
        modes.add(decision.mode)
    assert modes == {FP8}


def test_a_few_misses_of_an_idle_service_move_next_to_nothing() -> None:
    """Three odd requests that all miss: of so few, three say nothing."""
    _, calm = see(120, judged(0.0, 0.0))
    _, odd = see(3, judged(1.0, 1.0), state=calm, now_s=220.0)
    decision, state = see(60, judged(0.0, 0.0), state=odd, now_s=223.0)
    assert (calm.leniency, decision.mode) == (1.0, AUTO)
    assert state.leniency >= 0.9


def test_a_service_that_misses_everything_under_load_is_directed_to_fp8() -> None:
    cluster = Cluster(make_loop("steered")).run(10)
    assert cluster.modes == {AUTO}
    for second in range(30):
        cluster.run(1, slo_evaluated=20 * second, within_slo=2 * second)
    assert cluster.modes == {FP8}


def test_another_leniency_is_no_switch_to_the_guards() -> None:
    scope = ClusterScope(ControllerConfig.model_validate({"policy": {"name": "steered"}}))
    rule = rule_at(0.5).rule_for(SLO)
    scope.changed(10.0, Content(AUTO), Content(AUTO, rule), ["r0"])
    assert scope._guard_state == GuardState()
    scope.changed(10.0, Content(AUTO, rule), Content(FP8), ["r0"])
    assert scope._guard_state.changed_at_s == 10.0


@pytest.mark.parametrize("wrong", [{"target_miss_share": 0}, {"target_miss_share": 0.5}, {"droop": 25}], ids=str)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Steered(**wrong)
