"""The ladder: its rows one by one, then against a cluster of queues under constant loads, where it must come to rest."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from controller_builders import make_rates, make_view, window

from controller.audit import Rung
from controller.config import ControllerConfig, LadderConfig
from controller.decide.overload import (
    LadderState,
    Strain,
    advance,
    limited,
    measure,
    rejoined,
    replicas_needed,
    shedding,
)
from controller.protocol.publisher import Content
from nestedfp.modes import DirectiveMode

BOTH = LadderConfig(shed=True, scale=True, max_replicas=16, min_replicas=4)


def make_strain(now_s: float, **overrides: Any) -> Strain:
    """Four replicas in FP8 that do well."""
    usual: dict[str, Any] = {
        "replicas": 4,
        "fully_degraded": True,
        "offered_over_admitted": 1.0,
        "over_slo": 0,
        "over_half_slo": 0,
    }
    return Strain(now_s=now_s, **{**usual, **overrides})


def climb(state: LadderState, config: LadderConfig, from_s: float, to_s: float, **strain: Any) -> tuple[Any, list[Any]]:
    """Advance ten times a second under one strain; returns the state and (time, reason) of what happened."""
    events = []
    for tick in range(round(from_s * 10), round(to_s * 10)):
        state, reason = advance(make_strain(tick / 10, **strain), state, config)
        if reason is not None:
            events.append((tick / 10, reason))
    return state, events


def test_without_leave_to_act_it_says_that_fp8_is_not_enough_and_when_it_is_again() -> None:
    state, events = climb(LadderState(), LadderConfig(), 0, 60, over_slo=4)
    assert events == [(10.0, "fp8_cannot_hold_slo")]
    assert (state.admission_scale, state.desired_replicas, state.rung(True)) == (1.0, None, Rung.DEGRADE)
    assert climb(state, LadderConfig(), 60, 100)[1] == [(75.0, "fp8_holds_slo")]


@pytest.mark.parametrize("strain", [{"over_slo": 2, "over_half_slo": 2}, {"over_slo": 4}])
def test_shedding_begins_after_a_while_goes_in_steps_and_stops_at_the_floor(strain: dict[str, Any]) -> None:
    config = LadderConfig(shed=True, min_admission_scale=0.5)
    state, events = climb(LadderState(), config, 0, 40, **strain)
    assert events == [(10.0, "shed_more"), (12.0, "shed_more"), (14.0, "shed_more"), (16.0, "shed_more")]
    assert (state.admission_scale, state.rung(True)) == (0.5, Rung.SHED)


def test_the_first_step_goes_to_what_would_run_in_time() -> None:
    overload = {"missed_share": 0.6, "slow": True}
    state, events = climb(LadderState(), LadderConfig(shed=True), 0, 10.5, **overload, fitting_share=0.15)
    assert events == [(10.0, "shed_more")]
    assert state.admission_scale == pytest.approx(0.15)
    state, _ = climb(state, LadderConfig(shed=True), 10.5, 12.5, **overload, fitting_share=0.1)
    assert state.admission_scale == pytest.approx(0.15 * 0.8), "from then on by a factor"
    crowded, _ = climb(LadderState(), LadderConfig(shed=True), 0, 10.5, **overload, fitting_share=3.0)
    assert crowded.admission_scale == pytest.approx(0.8)


def test_answers_that_miss_the_slo_are_a_miss_though_nobody_waits_as_long_as_engines_are_slow() -> None:
    config = LadderConfig(shed=True)
    assert climb(LadderState(), config, 0, 60, missed_share=0.5, slow=True)[1] == []
    assert climb(LadderState(), config, 0, 60, missed_share=0.9, slow=False)[1] == [], "it is over"
    state, events = climb(LadderState(), config, 0, 10.5, missed_share=0.51, slow=True)
    assert events == [(10.0, "shed_more")]
    events = climb(state, config, 10.5, 40, missed_share=0.4)[1]
    assert events[0] == (25.5, "admit_more"), "some miss it always; whether fewer refusals do is tried"


def test_the_last_known_share_of_misses_holds_for_a_while() -> None:
    config, state = LadderConfig(shed=True), LadderState()
    events = []
    for tick in range(300):
        share = 0.8 if tick % 50 == 0 else None
        state, reason = advance(make_strain(tick / 10, missed_share=share, slow=True), state, config)
        events += [reason] if reason else []
    assert "shed_more" in events
    old = LadderState(missed_share=0.8, missed_at_s=0.0)
    assert climb(old, config, 11, 60, slow=True)[1] == [], "of ten seconds ago"


def test_no_replica_fewer_is_tried_while_answers_miss() -> None:
    state = LadderState(insufficient=True, desired_replicas=6, shed_since_s=0.0)
    assert replicas_needed(make_strain(0, missed_share=0.3), state, BOTH) == 6
    assert replicas_needed(make_strain(0, missed_share=0.05), state, BOTH) == 4


@pytest.mark.parametrize(
    "strain",
    [
        {"fully_degraded": False},  # precision comes first
        {"over_slo": 1},  # one of four: a stuck replica is no overload
        {"replicas": 0},
    ],
)
def test_nothing_is_shed_without_need(strain: dict[str, Any]) -> None:
    assert climb(LadderState(), BOTH, 0, 100, **{"over_slo": 4, **strain})[1] == []


def test_replicas_are_asked_for_when_users_are_still_turned_away_and_as_many_more_as_came() -> None:
    state, _ = climb(LadderState(), BOTH, 0, 12, over_slo=4)
    # Shedding works: what is admitted is served. What comes is half as much again.
    state, events = climb(state, BOTH, 12, 100, offered_over_admitted=1.5, over_half_slo=2)
    assert events == [(40.0, "scale_up")]
    assert state.desired_replicas == 6  # 4 * 1.5
    assert state.rung(True) is Rung.SCALE


@pytest.mark.parametrize(
    ("strain", "wanted"),
    [
        ({"replicas": 12, "offered_over_admitted": 1.9}, 16),  # bounded
        ({}, 4),
        ({"offered_over_admitted": 1.5}, 6),
        ({"offered_over_admitted": 50.0}, 8),  # refused clients try again and count often
        ({"over_slo": 4}, 5),
    ],
)
def test_the_number_of_replicas(strain: dict[str, Any], wanted: int) -> None:
    assert replicas_needed(make_strain(0, **strain), LadderState(), BOTH) == wanted


def test_users_are_let_in_before_replicas_are_given_back_and_precision_comes_last() -> None:
    state = LadderState(insufficient=True, admission_scale=0.64, desired_replicas=5, shed_since_s=0.0)
    state, events = climb(state, BOTH, 0, 400, replicas=5)
    assert [reason for _, reason in events] == ["admit_more", "admit_more", "scale_back", "fp8_holds_slo"]
    assert not state.holds_fp8


def test_while_the_queue_drains_no_more_is_shed_than_every_ten_seconds() -> None:
    config = LadderConfig(shed=True)
    state, events = climb(LadderState(), config, 0, 10.5, over_slo=4)
    assert events == [(10.0, "shed_more")]
    state, events = climb(state, config, 10.5, 41, over_slo=4, over_half_slo=4, draining=True)
    assert events == [(20.0, "shed_more"), (30.0, "shed_more"), (40.0, "shed_more")]
    assert state.admission_scale == pytest.approx(0.8**4, abs=1e-5)


def test_a_recovery_in_which_nobody_is_refused_takes_seconds_and_not_minutes() -> None:
    state = LadderState(insufficient=True, admission_scale=0.1, shed_since_s=0.0, stepped_at_s=0.0)
    state, events = climb(state, LadderConfig(shed=True), 0, 40)
    assert state.admission_scale == 1.0
    assert events[0] == (15.0, "admit_more")
    assert events[-1][0] <= 36.0
    refusing = LadderState(insufficient=True, admission_scale=0.5, shed_since_s=0.0, stepped_at_s=0.0)
    _, events = climb(refusing, LadderConfig(shed=True), 0, 40, offered_over_admitted=1.2)
    assert [at_s for at_s, _ in events] == [15.0, 30.0]  # the limit binds: each step is a trial
    assert (state.rung(True), state.holds_fp8) == (Rung.DEGRADE, False)


def test_a_restart_goes_on_from_the_scale_that_replicas_report() -> None:
    state = shedding(LadderState(), 0.512, 5.0, BOTH)
    assert (state.rung(True), state.insufficient) == (Rung.SHED, True)
    assert climb(state, BOTH, 5, 23)[1] == [(20.0, "admit_more"), (22.0, "admit_more")]
    assert shedding(LadderState(), 0.01, 5.0, BOTH).admission_scale == BOTH.min_admission_scale
    assert shedding(LadderState(), 0.512, 5.0, LadderConfig()) == LadderState()


def test_a_restart_goes_on_from_the_replicas_that_were_asked_for() -> None:
    state = rejoined(rejoined(LadderState(), 6, BOTH), 5, BOTH)
    assert (state.rung(True), state.desired_replicas) == (Rung.SCALE, 6)
    assert rejoined(state, 40, BOTH).desired_replicas == BOTH.max_replicas
    assert rejoined(LadderState(), None, BOTH) == LadderState() == rejoined(LadderState(), 6, LadderConfig(shed=True))


def test_what_a_reload_forbids_ends_at_once() -> None:
    state = LadderState(insufficient=True, admission_scale=0.2, desired_replicas=12)
    assert limited(state, LadderConfig()) == LadderState(insufficient=True)
    narrow = LadderConfig(shed=True, min_admission_scale=0.5, scale=True, max_replicas=6)
    assert (limited(state, narrow).admission_scale, limited(state, narrow).desired_replicas) == (0.5, 6)


# -- against queues ----------------------------------------------------------------------------------------------------

SLOTS, LIMIT = 32, 128  # requests that a replica computes at once, and lets in at most
START_S = 60.0  # a new replica takes this long


@dataclass
class Queues:
    """Equal replicas, each a queue before ``SLOTS`` places; requests are fluid. One request a second fills a place."""

    replicas: int = 4
    inside: float = 0.0  # requests in each replica
    coming: list[tuple[float, int]] = field(default_factory=list)  # replicas on their way: when, how many then

    def tick(self, now_s: float, offered: float, scale: float, desired: int | None) -> Strain:
        """A second under ``offered`` requests a second, in units of what four replicas serve in FP8."""
        wanted = max(4, desired or 0)
        if wanted > self.replicas and not self.coming:
            self.coming.append((now_s + START_S, wanted))
        if self.coming and now_s >= self.coming[0][0]:
            self.replicas = self.coming.pop(0)[1]
        if wanted < self.replicas and not self.coming:
            self.replicas = wanted
        arriving = offered * 4 * SLOTS / self.replicas
        served = min(float(SLOTS), self.inside + arriving)
        room = max(0.0, scale * LIMIT - self.inside + served)
        admitted = min(arriving, room)
        self.inside = max(0.0, self.inside + admitted - served)
        wait_s = max(0.0, self.inside - SLOTS / 2) / SLOTS
        over = self.replicas if wait_s > 0.5 else 0
        return Strain(
            now_s=now_s,
            replicas=self.replicas,
            fully_degraded=True,
            offered_over_admitted=arriving / max(admitted, 1e-6),
            over_slo=over,
            over_half_slo=self.replicas if wait_s > 0.25 else 0,
        )


def play(offered: float, config: LadderConfig, duration_s: int = 7200) -> tuple[LadderState, list[Any]]:
    queues, state, events = Queues(), LadderState(), []
    for now_s in range(duration_s):
        strain = queues.tick(float(now_s), offered, state.admission_scale, state.desired_replicas)
        state, reason = advance(strain, state, config)
        if reason is not None:
            events.append((now_s, reason))
    return state, events


@pytest.mark.parametrize("offered", [0.9, 1.5, 6.0])
@pytest.mark.parametrize("scale", [False, True])
def test_under_a_constant_load_trials_become_rare(offered: float, scale: bool) -> None:
    config = BOTH if scale else LadderConfig(shed=True)
    _, events = play(offered, config, duration_s=4 * 3600)
    late = [reason for at_s, reason in events if at_s > 3 * 3600]
    assert len(late) <= 12, late


def test_enough_replicas_end_the_shedding() -> None:
    state, events = play(1.9, BOTH)
    assert state.admission_scale == 1.0
    assert state.desired_replicas is not None
    assert state.desired_replicas >= 8
    order = [reason for _, reason in events]
    assert order.index("shed_more") < order.index("scale_up") < order.index("admit_more")


# -- what it looks at --------------------------------------------------------------------------------------------------


def strain_of(*views: Any) -> Strain:
    return measure(100.0, views, Content(DirectiveMode.AUTO), ControllerConfig(), 1.0)


def test_misses_are_those_of_all_replicas_and_too_few_say_nothing() -> None:
    many = make_view(rates=make_rates(slo_evaluated=15.0, within_slo=12.0))
    bad = make_view(rates=make_rates(slo_evaluated=15.0, within_slo=0.0))
    assert strain_of(many, bad).missed_share == pytest.approx(0.6)
    assert strain_of(many).missed_share is None


def test_an_engine_is_slow_by_its_steps_or_by_its_queue() -> None:
    assert not strain_of(make_view(step_ms_fp16=29.0)).slow
    assert strain_of(make_view(step_ms_fp16=31.0)).slow  # the objective is 33.3 ms
    assert strain_of(make_view(oldest_wait_s=0.15, waiting=1)).slow
    assert not strain_of(make_view(step_ms_fp16=31.0), make_view(), make_view()).slow, "half of them"
    assert not strain_of().slow


def test_what_fits_is_what_runs_over_how_much_too_slow_it_is_on_the_replica_where_that_is_most() -> None:
    full = {"inside_share": 0.4, "running": 60, "waiting": 20}
    assert strain_of(make_view(**full)).fitting_share == pytest.approx(0.3), "the queue does not run"
    assert strain_of(make_view(**full, tpot=window(66.6))).fitting_share == pytest.approx(0.15)
    assert strain_of(make_view(**full, tpot=window(66.6, count=5))).fitting_share == pytest.approx(0.3)
    less = make_view(**{**full, "inside_share": 0.1})
    assert strain_of(make_view(**full, tpot=window(66.6)), less).fitting_share == pytest.approx(0.15)
    assert strain_of(make_view(inside_share=0.0, running=0)).fitting_share is None
    assert strain_of(make_view(inside_share=None)).fitting_share is None


def replace_config(**changes: Any) -> LadderConfig:
    return EXACT.model_copy(update=changes)


EXACT = LadderConfig(shed=True, scale=True, max_replicas=6, min_replicas=2, exact_share=0.5)


def test_replicas_are_asked_for_while_too_few_are_exact_one_after_the_other_as_they_come() -> None:
    short = {"replicas": 4, "exact_replicas": 1, "fully_degraded": False}
    state, events = climb(LadderState(), EXACT, 0, 100, **short)
    assert events == [(30.0, "too_few_exact")], "the next one waits for the first"
    assert (state.desired_replicas, state.holds_fp8, state.insufficient) == (5, False, False)
    state, events = climb(state, EXACT, 100, 300, **{**short, "replicas": 5})
    assert (state.desired_replicas, events) == (6, [(130.0, "too_few_exact")]), "the new one has its time"
    state, events = climb(state, EXACT, 300, 500, **{**short, "replicas": 6})
    assert (state.desired_replicas, events) == (6, []), "no more than there may be"
    assert climb(LadderState(), BOTH, 0, 100, **short)[1] == [], "nobody asked for exact ones"


def test_exact_replicas_that_come_and_go_count_by_their_mean() -> None:
    for busy, wanted in ((0.7, None), (0.3, 3)):
        state = LadderState()
        for tick in range(3000):
            exact = 2 if tick % 100 < 100 * busy else 0
            strain = make_strain(tick / 10, replicas=2, exact_replicas=exact, fully_degraded=False)
            state, _ = advance(strain, state, replace_config(exact_share=0.6))
        assert (state.desired_replicas is None) == (wanted is None)


def test_a_replica_is_given_back_when_the_exact_share_holds_without_it() -> None:
    asked = replace(LadderState(), desired_replicas=5)
    assert climb(asked, EXACT, 0, 130, replicas=5, exact_replicas=5)[1] == [(120.0, "scale_back")]
    assert climb(asked, EXACT, 0, 200, replicas=5, exact_replicas=3)[1] == [], "one of two left beside three fast ones"
    assert climb(asked, EXACT, 0, 130, replicas=5, exact_replicas=4)[1] == [(120.0, "scale_back")]


def test_an_overload_sheds_though_exact_replicas_were_asked_for() -> None:
    _, events = climb(LadderState(), EXACT, 0, 20, over_slo=4)
    assert [reason for _, reason in events][:1] == ["shed_more"]


def test_a_restart_keeps_the_replicas_asked_for_and_holds_no_precision_for_them() -> None:
    state = rejoined(LadderState(), 5, EXACT)
    assert (state.desired_replicas, state.holds_fp8) == (5, False)


def test_a_share_of_exact_replicas_needs_leave_to_scale_and_the_policy_that_has_them() -> None:
    with pytest.raises(ValueError, match="expected scale: true"):
        LadderConfig(exact_share=0.5)
    ladder = {"scale": True, "max_replicas": 4, "exact_share": 0.5}
    ControllerConfig.model_validate({"ladder": ladder, "policy": {"name": "exact_first"}})
    with pytest.raises(ValueError, match=r"ladder\.exact_share is of the policy exact_first.*got deadlines"):
        ControllerConfig.model_validate({"ladder": ladder, "policy": {"name": "deadlines"}})
