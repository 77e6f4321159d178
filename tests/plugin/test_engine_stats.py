"""What the controller hears of an engine: who waits and since when, and whether steps still end."""

import time

import pytest
from vllm.sampling_params import StructuredOutputsParams
from vllm_parts import BLOCK, Engine, engine_request

from controller.messages import ReplicaSnapshot


def arrived(name, prompt=20, **params):
    request = engine_request(name, prompt, **params)
    request.arrival_time = time.time()
    return request


def test_whatever_the_engine_tells_has_its_place_in_the_snapshot():
    engine = Engine()
    engine.add(arrived("a"))
    engine.step()
    replica = {"replica_id": "r", "seq": 1, "ready": True, "lease_remaining_s": 1.0}
    ReplicaSnapshot(**replica, **engine.scheduler.nestedfp_stats())


def test_the_reasons_for_fp8_are_counted_and_fp16_has_none():
    engine = Engine()
    engine.add(arrived("a", max_tokens=6))
    engine.direct("fp8")
    engine.step()
    engine.step()
    rule = {"fp8_budget_fraction": 8 / engine.config.scheduler_config.max_num_batched_tokens}
    engine.scheduler.nestedfp_set_directive({"mode": "auto", "epoch": 2, "rule": rule})
    engine.add(arrived("b", prompt=90))  # of which a block is cached
    for _ in range(3):
        engine.step()
    stats = engine.scheduler.nestedfp_stats()
    assert stats["fp8_reasons"] == {"directive": 2, "step_budget": 1}
    assert stats["steps_fp8"] == 3
    assert stats["steps_fp16"] == 2


def test_a_step_takes_what_its_device_says_not_what_a_late_look_makes_of_it(monkeypatch):
    engine = Engine()
    now_s = 1000.0
    monkeypatch.setattr(time, "clock_gettime", lambda clock: now_s)
    engine.add(arrived("a", max_tokens=50))

    def step(looked_s, since_last_s):
        nonlocal now_s
        scheduled = engine.schedule()
        now_s = looked_s
        engine.finish(scheduled, since_last_s=since_last_s)
        return engine.scheduler.nestedfp_stats()["step_s_fp16"]

    before = step(1000.020, None)
    assert before == pytest.approx(0.020), "where no device keeps the time"
    assert step(1000.040, 0.020) - before == pytest.approx(0.020)
    # As if the host had launched another step meanwhile: the device was done 6 ms before the host looked.
    before = engine.scheduler.nestedfp_stats()["step_s_fp16"]
    assert step(1000.055, 0.009) - before == pytest.approx(0.009, abs=1e-4)


def with_grammar(name, prompt=20):
    """A request that waits for its grammar."""
    return arrived(name, prompt, structured_outputs=StructuredOutputsParams(regex="a"))


def test_a_request_that_waits_for_a_grammar_is_not_in_line(clocks):
    engine = Engine()
    engine.add(with_grammar("a"))
    clocks.pass_(30)
    stats = engine.scheduler.nestedfp_stats()
    assert (stats["waiting"], stats["blocked"], stats["oldest_wait_s"]) == (0, 1, 0.0)
    assert stats["progress_age_s"] is None, "nothing to compute"


def test_a_grammar_that_is_ready_puts_its_request_in_line_from_then_on(clocks):
    engine = Engine(blocks=6)
    engine.add(arrived("first", 4 * BLOCK, max_tokens=50))
    engine.step()
    late = engine.add(with_grammar("late", 6 * BLOCK))
    clocks.pass_(30)
    late.structured_output_request = type("Ready", (), {"grammar": object()})()
    engine.schedule()
    stats = engine.scheduler.nestedfp_stats()
    assert (stats["waiting"], stats["blocked"], stats["running"]) == (1, 0, 1), "there is no room for it"
    assert stats["oldest_wait_s"] < 1.0


def test_the_time_in_which_only_a_grammar_was_waited_for_is_no_stalled_step(clocks):
    engine = Engine()
    request = engine.add(with_grammar("a"))
    clocks.pass_(30)
    request.structured_output_request = type("Ready", (), {"grammar": object()})()
    engine.schedule()
    stats = engine.scheduler.nestedfp_stats()
    assert (stats["running"], stats["progress_age_s"] < 1.0) == (1, True)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_one_that_waits_for_a_grammar_hides_nobody_behind_it(policy, clocks):
    engine = Engine(scheduling_policy=policy)
    engine.add(with_grammar("first"))
    clocks.pass_(30)
    engine.add(arrived("second"))
    clocks.pass_(3)
    stats = engine.scheduler.nestedfp_stats()
    assert (stats["waiting"], stats["blocked"]) == (1, 1)
    assert stats["oldest_wait_s"] == pytest.approx(3, abs=0.5)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_oldest_wait_is_that_of_the_first_in_line(policy, clocks):
    engine = Engine(max_num_seqs=1, scheduling_policy=policy)
    engine.add(arrived("runs", max_tokens=50))
    engine.step()
    engine.add(arrived("waits"))
    clocks.pass_(3)
    engine.add(arrived("behind"))
    clocks.pass_(2)
    assert engine.scheduler.nestedfp_stats()["oldest_wait_s"] == pytest.approx(5, abs=0.5)


def test_a_preempted_request_waits_since_its_preemption(clocks):
    engine = Engine(blocks=7)
    requests = [engine.add(arrived(name, 2 * BLOCK, max_tokens=3 * BLOCK)) for name in "ab"]
    clocks.pass_(60)
    while not any(request.num_preemptions for request in requests):
        engine.step()
    assert engine.scheduler.nestedfp_stats()["waiting"] == 1
    assert engine.scheduler.nestedfp_stats()["oldest_wait_s"] < 1.0


def test_one_that_waits_behind_a_preempted_request_is_still_seen(clocks):
    engine = Engine(blocks=7)
    requests = [engine.add(arrived(name, 2 * BLOCK, max_tokens=3 * BLOCK)) for name in "ab"]
    while not any(request.num_preemptions for request in requests):
        engine.step()
    engine.add(arrived("c"))
    clocks.pass_(9)
    for request in requests:  # as if it had just been preempted
        request.nestedfp_waits_since_s += 9
    assert engine.scheduler.nestedfp_stats()["oldest_wait_s"] == pytest.approx(9, abs=0.5)


def test_the_age_of_the_last_step_counts_from_when_there_was_work():
    engine = Engine()
    assert engine.scheduler.nestedfp_stats()["progress_age_s"] is None
    engine.scheduler._progress_s -= 100.0  # idle for long
    engine.add(arrived("a"))
    assert engine.scheduler.nestedfp_stats()["progress_age_s"] < 1.0
    scheduled = engine.schedule()
    engine.scheduler._progress_s -= 7.0  # the step does not end
    assert engine.scheduler.nestedfp_stats()["progress_age_s"] == pytest.approx(7.0, abs=0.5)
    engine.finish(scheduled)
    assert engine.scheduler.nestedfp_stats()["progress_age_s"] < 1.0
    engine.run()
    assert engine.scheduler.nestedfp_stats()["progress_age_s"] is None


def test_a_paused_engine_has_not_stalled():
    engine = Engine()
    engine.add(arrived("a"))
    unpaused = engine.scheduler.pause_state
    engine.scheduler.set_pause_state(type(unpaused).PAUSED_ALL)
    engine.scheduler._progress_s -= 100.0
    assert engine.scheduler.nestedfp_stats()["progress_age_s"] is None
    engine.scheduler.set_pause_state(unpaused)
    assert engine.scheduler.nestedfp_stats()["progress_age_s"] < 1.0
