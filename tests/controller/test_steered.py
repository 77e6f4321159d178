"""The policy steered: misses lower the fraction, danger enters FP8, single misses of an idle service move nothing."""

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
from controller.policies.steered import State, Steered
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


def test_without_misses_a_step_may_use_up_all_of_the_ttft_objective() -> None:
    decision, state = see(60, judged(100, 0.0))
    assert (decision.mode, decision.reason, state.fraction) == (AUTO, "slo_holds", 1.0)
    assert decision.rule.ttft_deadline_s == pytest.approx(0.2)
    assert decision.rule.tpot_deadline_s == pytest.approx(0.9 * 0.04)
    assert decision.rule.tpot_grace_tokens == 3


def test_at_a_constant_share_of_misses_the_fraction_comes_to_where_the_droop_says_and_stays() -> None:
    _, state = see(900, judged(100, 0.018))
    assert state.fraction == pytest.approx(1 - 25 * (0.018 - 0.006), abs=0.05)
    fractions = set()
    for minute in range(10):
        decision, state = see(60, judged(100, 0.018), state=state, now_s=1000.0 + 60 * minute)
        fractions.add(state.fraction)
    assert len(fractions) == 1
    assert decision.rule.ttft_deadline_s == pytest.approx(0.2 * state.fraction)


def test_the_fraction_rises_step_by_step_when_the_misses_have_passed() -> None:
    _, low = see(300, judged(100, 0.018))
    _, soon = see(60, judged(100, 0.0), state=low, now_s=400.0)
    assert low.fraction < soon.fraction <= low.fraction + 6 * steered.GRID + 1e-9
    assert see(600, judged(100, 0.0), state=soon, now_s=460.0)[1].fraction == 1.0


def test_many_misses_enter_fp8() -> None:
    decision, _ = see(60, judged(100, 0.1))
    assert (decision.mode, decision.reason) == (FP8, "too_many_misses")


def test_a_few_misses_of_an_idle_service_move_nothing() -> None:
    """Three odd requests that all miss: of so few, three say nothing."""
    _, state = see(3, judged(1.0, 1.0))
    decision, state = see(60, judged(0.0, 0.0), state=state, now_s=103.0)
    assert (decision.mode, state.fraction) == (AUTO, 1.0)


def test_a_queue_that_stands_enters_fp8_before_anybody_has_missed() -> None:
    overload = {"tokens_per_s": 3000, "oldest_wait_s": 2.0, "waiting": 20, "waiting_tokens": 9000}
    cluster = Cluster(make_loop("steered")).run(10)
    assert cluster.modes == {AUTO}
    assert cluster.run(3, **overload).modes == {FP8}


def test_back_from_fp8_the_fraction_begins_low() -> None:
    config = Steered()
    _, state = steered.start(config)
    for tick in range(600):
        observation = Observation(100.0 + tick / 10, (judged(100, 0.0),), current=FP8, slo=SLO)
        decision, state = steered.decide(observation, state, config)
    assert decision.mode is AUTO
    assert state.fraction == pytest.approx(config.fp8_fraction + 2 * steered.GRID)


def test_a_new_fraction_is_no_switch_to_the_guards() -> None:
    scope = ClusterScope(ControllerConfig.model_validate({"policy": {"name": "steered"}}))
    rule = Deadlines(ttft_fraction=0.5).rule_for(SLO)
    scope.changed(10.0, Content(AUTO), Content(AUTO, rule), ["r0"])
    assert scope._guard_state == GuardState()
    scope.changed(10.0, Content(AUTO, rule), Content(FP8), ["r0"])
    assert scope._guard_state.changed_at_s == 10.0


@pytest.mark.parametrize("wrong", [{"droop": 0}, {"calm_wait_fraction": 0.1}, {"fp8_fraction": 1.0}], ids=str)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Steered(**wrong)
