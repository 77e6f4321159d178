"""The control loop: snapshots in, effects out, no mocks and no clock."""

from typing import Any

import pytest
from control_cluster import HOT, Cluster, make_loop
from controller_builders import make_snapshot, window
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.audit import DecisionOutcome, Rung
from controller.config import ControllerConfig
from controller.decide.loop import ControlLoop
from nestedfp.modes import DirectiveMode

FP16, FP8, AUTO = DirectiveMode.FP16, DirectiveMode.FP8, DirectiveMode.AUTO


@pytest.mark.parametrize(
    ("policy", "mode"), [("static_fp16", FP16), ("static_fp8", FP8), ("token_fraction", AUTO), ("threshold", FP16)]
)
def test_the_first_step_publishes_and_records_where_the_policy_starts(policy: str, mode: DirectiveMode) -> None:
    loop = make_loop(policy)
    effects = loop.step(0.0)
    assert loop.directive_for("r0") is None, "nothing has been heard of it"
    loop.on_snapshot(0.0, make_snapshot(epoch=0, ready=False))
    told = loop.directive_for("r0")
    assert told.mode is mode
    assert effects.record is not None
    assert (effects.record.decision_id, effects.record.from_mode, effects.record.to_mode) == (1, mode, mode)
    assert effects.next_step_at_s == pytest.approx(0.05)
    if policy == "token_fraction":
        assert told.rule.fp8_budget_fraction == 0.5


def test_a_burst_is_met_at_once_held_and_then_left() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(10)
    assert cluster.modes == {FP16}
    cluster.run(0.5, **HOT)
    assert cluster.modes == {FP8}
    cluster.run(5, **HOT).run(3, tokens_per_s=300)
    assert cluster.modes == {FP8}
    assert cluster.status.last_reason == "calm_too_short"
    cluster.run(2, tokens_per_s=300)
    assert cluster.modes == {FP16}
    assert [(r.from_mode, r.to_mode) for r in cluster.records] == [(FP16, FP16), (FP16, FP8), (FP8, FP16)]
    assert [r.epoch for r in cluster.records] == [1, 2, 3]
    assert cluster.records[1].inputs


def test_rates_come_from_totals_over_the_window() -> None:
    replica = Cluster(make_loop()).run(5, tokens_per_s=4000).status.replicas[0]
    assert replica.tokens_per_s == pytest.approx(4000)
    assert replica.arrivals_per_s == pytest.approx(10)


def test_a_burst_of_delayed_snapshots_gives_no_rate() -> None:
    loop = make_loop()
    for seq in range(1, 20):
        loop.on_snapshot(5.0 + seq / 1000, make_snapshot(seq=seq, arrivals=seq * 100))
    assert loop.status(5.1).replicas[0].arrivals_per_s is None


@pytest.mark.parametrize(
    "late",
    [
        {"seq": 5},  # duplicate
        {"seq": 3},  # overtaken
    ],
)
def test_late_snapshots_are_ignored(late: dict[str, Any]) -> None:
    loop = make_loop()
    loop.on_snapshot(0.1, make_snapshot(seq=5, running=5))
    before = loop.status(0.2)
    loop.on_snapshot(0.2, make_snapshot(**{**HOT, "running": 9, **late}))
    assert loop.status(0.2) == before
    loop.step(0.2)
    assert loop.directive_for("r0").mode is FP16


totals = st.fixed_dictionaries(
    {
        name: st.integers(0, 2**70)
        for name in ("tokens_fp16", "tokens_fp8", "steps_fp16", "steps_fp8", "arrivals", "arrived_tokens", "finished")
    }
)


@settings(max_examples=30)
@given(st.lists(totals, min_size=1, max_size=10))
def test_garbage_totals_never_change_the_mode(garbage: list[dict[str, Any]]) -> None:
    calm = Cluster(make_loop()).run(2)
    hot = Cluster(make_loop()).run(2).run(25, **HOT)
    for faults in garbage:
        calm.run(0.3, **faults)
        hot.run(0.3, **HOT, **faults)
    assert calm.modes == {FP16}
    assert hot.modes == {FP8}


def test_a_replica_that_falls_silent_keeps_fp8_until_it_is_forgotten() -> None:
    config = ControllerConfig.model_validate({"policy": {"name": "threshold", "leave_after_s": 2}})
    cluster = Cluster(ControlLoop(config), ("r0", "r1")).run(2).run(25, **HOT)
    cluster.silent = {"r1"}
    cluster.run(9)
    assert (cluster.status.mode, cluster.status.exceptions) == (FP16, {"r1": FP8})
    assert [replica.stale for replica in cluster.status.replicas] == [False, True]
    cluster.run(3)
    assert (cluster.status.mode, cluster.status.exceptions) == (FP16, {})
    assert [replica.id for replica in cluster.status.replicas] == ["r0"]
    # The silent one never heard of it, and has fallen back by itself.
    assert cluster.followers["r1"].in_force(cluster.now_s).mode is AUTO


def test_no_data_at_all_changes_nothing() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(2).run(1, **HOT)
    cluster.silent = {"r0", "r1"}
    cluster.run(8)
    assert (cluster.status.mode, cluster.status.last_reason) == (FP8, "held_by_quorum")
    cluster.run(30)
    assert (cluster.status.mode, cluster.status.last_reason) == (FP8, "held_no_ready_replicas")


# -- override ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["threshold", "static_fp16", "token_fraction"])
def test_an_override_is_published_at_once_and_handed_back(policy: str) -> None:
    cluster = Cluster(make_loop(policy)).run(1)
    before = cluster.status.mode
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP8))
    assert cluster.modes == {FP8}
    assert (cluster.records[-1].reason, cluster.records[-1].to_mode) == ("override", FP8)
    cluster.run(100)
    override = cluster.status.override
    assert override is not None
    assert (override.mode, override.remaining_s) == (FP8, None)
    cluster.carry_out(cluster.loop.override(cluster.now_s, AUTO))
    assert cluster.modes == {before}
    assert cluster.status.override is None


def test_an_override_outranks_load() -> None:
    cluster = Cluster(make_loop()).run(2).run(1, **HOT)
    assert cluster.modes == {FP8}
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP16))
    cluster.run(10, **HOT)
    assert cluster.modes == {FP16}


def test_an_override_ends_on_time_and_the_loop_asks_to_be_woken_for_it() -> None:
    cluster = Cluster(make_loop("static_fp16")).run(1)
    effects = cluster.loop.override(1.0, FP8, 0.03)
    assert effects.next_step_at_s == pytest.approx(1.03)
    assert cluster.loop.status(1.01).override is not None
    ended = cluster.loop.step(1.03)
    assert (ended.record.to_mode, ended.record.reason) == (FP16, "static_fp16")


@pytest.mark.parametrize(("mode", "ttl_s"), [(FP8, 0.0), (FP8, -1.0), (FP8, float("nan")), (AUTO, 5.0)])
def test_a_senseless_ttl_is_refused_and_changes_nothing(mode: DirectiveMode, ttl_s: float) -> None:
    loop = make_loop()
    loop.step(0.0)
    before = loop.status(0.0)
    with pytest.raises(ValueError, match=r"expected ttl_s > 0.*got ttl_s="):
        loop.override(0.0, mode, ttl_s)
    assert loop.status(0.0) == before


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_a_restarted_controller_does_not_end_fp8_amid_an_overload() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(2).run(3, **HOT)
    epoch = cluster.status.epoch
    cluster.loop = make_loop()
    cluster.run(1, **HOT)
    assert cluster.modes == {FP8}
    assert cluster.status.reason == "adopted_from_replica"
    assert cluster.status.epoch > epoch
    cluster.run(30, tokens_per_s=500)
    assert cluster.modes == {FP16}


def test_a_restarted_fixed_policy_insists_on_its_mode() -> None:
    cluster = Cluster(make_loop("static_fp8")).run(2)
    cluster.loop = make_loop("static_fp16")
    assert cluster.run(0.3).modes == {FP16}


# -- reports -----------------------------------------------------------------------------------------------------------


def test_status_says_what_each_replica_does() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(2).run(1, ttft=window(50, 3), **HOT)
    status = cluster.status.model_dump(mode="json")
    assert (status["mode"], status["epoch"], status["policy"]) == ("fp8", 2, "threshold")
    assert status["reason"] == "wait_ratio_over_enter"
    assert status["since_s"] == pytest.approx(1.0)
    replica = status["replicas"][1]
    assert (replica["id"], replica["acked"], replica["directive"], replica["epoch"]) == ("r1", True, "fp8", 2)
    assert (replica["waiting"], replica["oldest_wait_s"], replica["ttft_p90_ms"]) == (20, 1.0, 50.0)
    assert replica["tpot_p90_ms"] is None
    assert replica["age_s"] == pytest.approx(0.1)


def test_a_directive_is_settled_when_the_last_replica_has_acknowledged() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(2)
    cluster.carry_out(cluster.loop.override(cluster.now_s, FP8))
    assert cluster.loop.converged_after_s() is None
    cluster.run(0.1)
    assert cluster.loop.converged_after_s() == 0.0


def test_an_epoch_raised_above_a_replicas_is_recorded_without_a_change_of_mode() -> None:
    loop = make_loop("static_fp16")
    loop.step(0.0)
    loop.on_snapshot(0.1, make_snapshot(epoch=57, directive=FP8))
    told = loop.directive_for("r0")
    assert (told.epoch, told.mode) == (58, FP16)
    effects = loop.step(0.2)
    assert effects.record is not None
    assert (effects.record.reason, effects.record.epoch) == ("epoch_raised", 58)


def test_how_often_the_loop_steps_does_not_change_when_it_may_act() -> None:
    """Windows are in seconds: a loop stepped ten times as often flips no earlier."""

    def leaves_fp8_at_s(period_s: float) -> float:
        loop = make_loop()
        for tick in range(round(60 / period_s)):
            now_s = tick * period_s
            loop.on_snapshot(now_s, make_snapshot(seq=tick, **(HOT if now_s < 3 else {})))
            effects = loop.step(now_s)
            if effects.record is not None and effects.record.from_mode is FP8:
                return now_s
        return float("inf")

    assert leaves_fp8_at_s(0.5) == pytest.approx(leaves_fp8_at_s(0.05), abs=0.5)


# -- what is held back -------------------------------------------------------------------------------------------------


def test_a_wish_held_back_is_noted_once_and_not_with_every_step() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(2).run(1, **HOT)
    cluster.silent = {"r0", "r1"}
    cluster.run(5)
    held = [note for note in cluster.notes if note.reason == "held_by_quorum"]
    assert [(n.outcome, n.wanted, n.to_mode, n.rung) for n in held] == [(DecisionOutcome.HELD, None, FP8, Rung.DEGRADE)]
    cluster.silent = set()
    cluster.run(3, **HOT)
    assert (cluster.notes[-1].outcome, cluster.notes[-1].wanted) == (DecisionOutcome.RELEASED, FP8)
    ids = [record.decision_id for record in (*cluster.records, *cluster.notes)]
    assert sorted(ids) == list(range(1, len(ids) + 1))


def test_a_flickering_wish_is_noted_once_a_second_at_most() -> None:
    cluster = Cluster(make_loop()).run(2).run(1, **HOT)
    before = len(cluster.notes)
    for tick in range(100):
        cluster.run(0.1, **(HOT if tick % 2 else {}))
    assert len(cluster.notes) - before <= 11


def test_a_replica_that_flaps_changes_nothing() -> None:
    cluster = Cluster(make_loop(), ("r0", "r1")).run(2)
    for _ in range(20):  # cold starts, with the long waits that they bring
        cluster.run(1.5, each={"r1": {**HOT, "ready_for_s": 0.5, "oldest_wait_s": 3.0}})
        cluster.silent = {"r1"}
        cluster.run(1)
        cluster.silent = set()
    assert (cluster.modes, len(cluster.records)) == ({FP16}, 1)
