"""The policy exact_first: how many replicas are exact, and which; alone, and over real followers."""

from dataclasses import replace

import pytest
from control_cluster import FP16, Cluster, make_loop
from controller_builders import make_rates, make_view

from controller.messages import Room
from controller.policies.base import Observation
from controller.policies.exact_first import GROW_MARGIN, STARVED_S, ExactFirst, State, decide, limit
from nestedfp.modes import DirectiveMode
from workload.slo import Slo

CONFIG = ExactFirst()
SLO = Slo(ttft_ms=200, tpot_ms=33.3)
EXACT, FAST = 10_000.0, 20_000.0  # tokens per second of one replica


def view(number, load=0.0, room_share=0.8, inside=5, **changes):
    """A replica at which so many tokens per second arrive, all of them prompts."""
    return make_view(
        rates=make_rates(arrived_tokens_per_s=load, tokens_per_s=load),
        replica_id=f"r{number}",
        directive=DirectiveMode.AUTO,
        running=inside,
        exact_tokens_per_s=EXACT,
        fast_tokens_per_s=FAST,
        room=Room(tokens=round(1000 * room_share), full_tokens=1000, tokens_per_s=5000.0),
        **changes,
    )


class Run:
    """Asks the policy ten times a second and does what it says."""

    def __init__(self, replicas, config=CONFIG):
        self.names = [f"r{number}" for number in range(replicas)]
        self.config, self.state, self.now_s, self.exact = config, State(), 0.0, frozenset()
        self.changes = []  # time and K

    def go(self, seconds, load, silent=(), **of_views):
        for _ in range(round(10 * seconds)):
            views = [
                view(n, load / len(self.names), **of_views) for n in range(len(self.names)) if f"r{n}" not in silent
            ]
            exceptions = dict.fromkeys(self.exact, FP16)
            observation = Observation(self.now_s, views, DirectiveMode.AUTO, SLO, exceptions)
            decision, self.state = decide(observation, self.state, self.config)
            assert decision.mode is DirectiveMode.AUTO
            exact = frozenset(decision.exceptions) | (self.exact & set(silent))  # who says nothing keeps its mode
            if exact != self.exact:
                self.changes.append((self.now_s, len(exact)))
            self.exact, self.now_s = exact, self.now_s + 0.1
        return len(self.exact)


@pytest.mark.parametrize("replicas", [2, 3, 16])
def test_all_replicas_are_exact_in_quiet_hours_and_none_where_the_load_needs_all_of_them(replicas):
    run = Run(replicas)
    assert run.go(120, 0.1 * EXACT * replicas) == replicas
    assert run.go(60, 0.95 * FAST * replicas) == 0
    assert run.go(200, 0.1 * EXACT * replicas) == replicas


@pytest.mark.parametrize("replicas", [2, 16])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_k_settles_where_the_load_fits_and_stays_there(replicas, share):
    run = Run(replicas)
    run.go(150, share * FAST * replicas)
    settled, at = len(run.exact), len(run.changes)
    run.go(120, share * FAST * replicas)
    assert (len(run.exact), len(run.changes)) == (settled, at)
    views = [view(n) for n in range(replicas)]
    names = sorted(run.names)
    load = run.state.prompt_tokens_per_s * run.state.ratio
    assert load <= limit(views, names[:settled], CONFIG) or settled == 0
    if settled < replicas:
        assert load > GROW_MARGIN * limit(views, names[: settled + 1], CONFIG)


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_load_that_comes_at_once_ends_exact_replicas_within_two_seconds(replicas):
    run = Run(replicas)
    assert run.go(60, 0.02 * EXACT * replicas) == replicas
    assert run.go(1.8, 1.7 * EXACT * replicas) < replicas


def test_a_replica_out_of_view_for_a_moment_stays_exact():
    run = Run(2)
    assert run.go(60, 0.02 * EXACT * 2) == 2
    observation = Observation(run.now_s, [view(1)], DirectiveMode.AUTO, SLO, dict.fromkeys(run.exact, FP16))
    decision, _ = decide(observation, run.state, CONFIG)
    assert set(decision.exceptions) == {"r0", "r1"}


def test_one_replica_decides_for_itself():
    run = Run(1)
    assert run.go(60, 100.0) == 0


def test_fast_replicas_without_room_for_a_second_end_half_of_the_exact_ones_answers():
    run = Run(8)
    assert run.go(120, 0.6 * EXACT * 8) == 8
    at_s = run.now_s
    run.go(STARVED_S + 0.3, 0.6 * EXACT * 8, room_share=0.0)
    assert len(run.exact) == 4
    assert run.changes[-1][0] - at_s == pytest.approx(STARVED_S, abs=0.11)


def test_a_gap_shorter_than_a_second_changes_nothing():
    run = Run(4)
    assert run.go(120, 0.6 * EXACT * 4) == 4
    for _ in range(10):
        run.go(STARVED_S - 0.2, 0.6 * EXACT * 4, room_share=0.0)
        run.go(0.3, 0.6 * EXACT * 4)
    assert len(run.exact) == 4


def test_one_long_prompt_in_quiet_hours_changes_nothing():
    run = Run(8)
    assert run.go(120, 0.1 * EXACT * 8) == 8
    assert run.go(10, 0.1 * EXACT * 8, room_share=-5.0) == 8


def test_a_replica_that_is_silent_now_and_then_makes_nobody_alone():
    run = Run(2)
    assert run.go(60, 0.1 * EXACT * 2) == 2
    changes = len(run.changes)
    for _ in range(6):
        run.go(1.0, 0.1 * EXACT * 2, silent={"r1"})
        run.go(9.0, 0.1 * EXACT * 2)
    assert (len(run.exact), len(run.changes)) == (2, changes)


def test_k_rises_at_most_so_often_in_a_minute_and_falls_at_any_time():
    run = Run(2, ExactFirst(grow_after_s=0.0))
    for _ in range(30):
        run.go(2, 0.6 * EXACT * 2)
        run.go(STARVED_S + 0.2, 0.6 * EXACT * 2, room_share=-1.0)
    rises = [at_s for (at_s, k), (_, before) in zip(run.changes[1:], run.changes, strict=False) if k > before]
    assert len(rises) > 3
    for start_s in rises:
        assert sum(start_s <= at_s < start_s + 60 for at_s in rises) <= CONFIG.max_changes_per_minute


def test_the_replica_with_the_fewest_requests_changes():
    views = [view(n, load=0.95 * FAST, inside=inside) for n, inside in enumerate((9, 2, 7))]
    state = State(at_s=0.0, prompt_tokens_per_s=2.0 * FAST)
    observation = Observation(0.1, views, DirectiveMode.AUTO, SLO, {"r0": FP16, "r1": FP16})
    decision, _ = decide(observation, state, CONFIG)
    assert set(decision.exceptions) == {"r0"}


def test_fast_replicas_beside_exact_ones_keep_stricter_deadlines_and_all_tell_their_room():
    run = Run(2)
    views = [view(n) for n in range(2)]
    alone, _ = decide(Observation(0.0, views[:1], DirectiveMode.AUTO, SLO), State(), CONFIG)
    run.go(60, 0.05 * EXACT)
    observation = Observation(run.now_s, views, DirectiveMode.AUTO, SLO, dict.fromkeys(run.exact, FP16))
    beside, _ = decide(observation, run.state, CONFIG)
    assert beside.rule.ttft_deadline_s < alone.rule.ttft_deadline_s < beside.rule.room_ttft_s < 0.2
    assert alone.rule.exact_step_s == beside.rule.exact_step_s == pytest.approx(0.9 * 0.0333)


def test_replicas_that_measured_no_steps_all_decide_for_themselves():
    views = [view(n) for n in range(3)]
    views = [replace(v, snapshot=v.snapshot.model_copy(update={"exact_tokens_per_s": None})) for v in views]
    exact = {"r0": FP16}
    first, state = decide(Observation(5.0, views, DirectiveMode.AUTO, SLO, exact), State(), CONFIG)
    assert (dict(first.exceptions), first.reason) == (exact, "learning")
    later, _ = decide(Observation(10.1, views, DirectiveMode.AUTO, SLO, exact), state, CONFIG)
    assert (dict(later.exceptions), later.reason) == ({}, "step_costs_unknown")


def test_exact_replicas_stay_exact_without_a_controller_and_the_next_one_goes_on_with_them():
    room = Room(tokens=900, full_tokens=1000, tokens_per_s=5000.0)
    load = {"exact_tokens_per_s": EXACT, "fast_tokens_per_s": FAST, "room": room}
    cluster = Cluster(make_loop("exact_first"), ("r0", "r1", "r2"))
    cluster.run(60, 1000, **load)
    modes = {name: follower.in_force(cluster.now_s).mode for name, follower in cluster.followers.items()}
    assert set(modes.values()) == {FP16}
    cluster.now_s += 30  # nobody answers; leases end
    for name, follower in cluster.followers.items():
        force = follower.in_force(cluster.now_s)
        assert (force.mode, force.expired) == (modes[name], True)
        assert force.rule.exact_step_s is not None
    cluster.loop = make_loop("exact_first")
    for _ in range(30):
        cluster.run(0.1, 1000, **load)
        assert {name: follower.in_force(cluster.now_s).mode for name, follower in cluster.followers.items()} == modes
    for _ in range(5):  # with the rule, so that they go on telling their room
        assert all(follower.in_force(cluster.now_s).rule.room_ttft_s for follower in cluster.followers.values())
        cluster.run(0.3, 1000, **load)


def test_after_an_operators_order_a_replica_without_a_controller_decides_for_itself():
    cluster = Cluster(make_loop("exact_first"), ("r0", "r1"))
    cluster.run(2, 1000)
    cluster.carry_out(cluster.loop.override(cluster.now_s, DirectiveMode.FP8, 10.0))
    cluster.run(1, 1000)
    cluster.now_s += 5  # nobody answers any more
    assert cluster.followers["r0"].in_force(cluster.now_s).mode is DirectiveMode.FP8
    cluster.now_s += 10
    force = cluster.followers["r0"].in_force(cluster.now_s)
    assert (force.mode, force.rule.deadlines_s(force.mode) is None) == (DirectiveMode.AUTO, False)


def test_exact_replicas_answer_fast_rather_than_late_but_not_where_an_operator_says_fp16():
    load = {"exact_tokens_per_s": EXACT, "fast_tokens_per_s": FAST}
    cluster = Cluster(make_loop("exact_first"), ("r0", "r1"))
    cluster.run(60, 1000, **load)
    for follower in cluster.followers.values():
        force = follower.in_force(cluster.now_s)
        assert (force.mode, force.rule.deadlines_s(force.mode) is not None) == (FP16, True)
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP16, 20.0))
    cluster.run(5, 1000, **load)
    forces = [follower.in_force(cluster.now_s) for follower in cluster.followers.values()]
    assert [(force.mode, force.rule.deadlines_s(FP16)) for force in forces] == [(FP16, None)] * 2
    cluster.run(20, 1000, **load)  # the order ends
    assert cluster.followers["r1"].in_force(cluster.now_s).rule.deadlines_s(FP16) is not None


def test_what_no_precision_can_serve_is_shed_under_this_policy_too():
    ladder = {"shed": True, "shed_after_s": 2.0}
    cluster = Cluster(make_loop("exact_first", ladder=ladder), ("r0", "r1"))
    cluster.run(10, 1000)
    hot = {"oldest_wait_s": 5.0, "waiting": 50, "waiting_tokens": 50_000}
    cluster.run(20, 1000, **hot)
    assert cluster.followers["r0"].in_force(cluster.now_s).admission_scale < 1.0
