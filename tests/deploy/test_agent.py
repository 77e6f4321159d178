"""The replica's agent against an engine and a controller in memory: leases, catching up, failures of either side."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from controller.config import ControllerConfig
from deploy.access.admission import Admission, NoRoom
from deploy.agent.agent import ReplicaAgent
from deploy.front.context import PathMeter
from deploy.metrics.request_metrics import Answered
from nestedfp.answers import Answer
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision

STATS = {
    "mode": "fp16",
    "directive": "fp16",
    "epoch": 0,
    "switches": 0,
    "steps_fp16": 0,
    "steps_fp8": 0,
    "tokens_fp16": 0,
    "tokens_fp8": 0,
    "step_ms_fp16": None,
    "step_ms_fp8": None,
    **{
        "step_s_fp16": 0.5,
        "step_s_fp8": 0.0,
        "drafted_fp16": 4,
        "drafted_fp8": 0,
        "accepted_fp16": 2,
        "accepted_fp8": 0,
    },
    "waiting": 1,
    "waiting_tokens": 5,
    "oldest_wait_s": 0.25,
    "running": 0,
    "kv_usage": 0.0,
    "arrivals": 1,
    "arrived_tokens": 5,
    "finished": 0,
}


class Engine:
    """Keeps what it was told, as the engine core does."""

    def __init__(self):
        self.directives = []

    async def __call__(self, utility, *args):
        if utility == "nestedfp_set_directive":
            return self.directives.append(args[0])
        return dict(STATS)


class Controller:
    """Answers calls with a directive, or is unreachable."""

    def __init__(self, directive=None):
        self.directive = directive
        self.snapshots = []

    async def report(self, snapshot):
        self.snapshots.append(snapshot)
        if isinstance(self.directive, Exception):
            raise self.directive

    async def call(self, ack, seen):
        """Answer at once what the caller has not seen, and nothing else."""
        if isinstance(self.directive, Exception):
            raise self.directive
        if self.directive is None:
            return None
        if seen == str(self.directive["epoch"]):
            await asyncio.Event().wait()
        return {"token": str(self.directive["epoch"]), "directive": self.directive}


def directive(epoch, mode, lease_s=600.0):
    rule = {"fp8_budget_fraction": None}
    return {"epoch": epoch, "mode": mode, "lease_s": lease_s, "reason": "test", "rule": rule}


def run(scenario, controller, admission=None, meter=None, engine=None, policy="deadlines", **ends):
    async def main(engine=engine):
        engine = engine or Engine()
        config = ControllerConfig.model_validate({"policy": {"name": policy}})
        parts = admission or Admission(None, sequences=1), meter or PathMeter()
        agent = ReplicaAgent("r0", engine, controller.report, controller.call, config, *parts, **ends)
        await agent.start()
        try:
            return await scenario(agent, engine)
        finally:
            await agent.stop()

    return asyncio.run(main())


async def apply(agent, directive):
    """As the answer to the agent's call."""
    return await agent._take(directive)


async def until(condition, limit_s=60.0):
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came"
        await asyncio.sleep(0.01)


@pytest.fixture
def agents_clock(clock, monkeypatch):
    """What the agent takes for the time; its loops wait by the real one."""
    monkeypatch.setattr("deploy.agent.agent.time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.mark.parametrize("mode", ["fp16", "fp8"])
def test_a_new_replica_takes_no_request_before_it_has_asked_the_controller(mode):
    async def scenario(agent, engine):
        return engine.directives[-1]["mode"]

    assert run(scenario, Controller(directive(7, mode))) == mode


def test_a_directive_that_is_none_is_logged_and_the_next_one_taken(caplog):
    controller = Controller(directive(1, "fp32"))

    async def scenario(agent, engine):
        assert "a directive was not taken" in caplog.text
        controller.directive = directive(2, "fp8")
        await until(lambda: engine.directives[-1]["mode"] == "fp8")

    run(scenario, controller)


@pytest.mark.parametrize(
    ("policy", "mode"), [("static_fp16", "fp16"), ("static_fp8", "fp8"), ("deadlines", "auto"), ("threshold", "auto")]
)
def test_a_new_replica_that_finds_no_controller_does_what_the_policy_says(policy, mode):
    async def scenario(agent, engine):
        return [d["mode"] for d in engine.directives]

    assert run(scenario, Controller(ConnectionError("gone")), policy=policy) == [mode]


def test_an_operators_fp16_outlives_the_lease_until_its_own_time_is_over(agents_clock):
    async def scenario(agent, engine):
        override = {"mode": "fp16", "remaining_s": 60.0}
        await apply(agent, {**directive(1, "fp16", lease_s=2.0), "order": override})
        agents_clock.now_s += 59.0
        await until(lambda: agent.stats is not None and agent.lease_remaining_s == 0)
        held = (agent.directed, engine.directives[-1]["mode"])
        agents_clock.now_s += 1.5
        await until(lambda: engine.directives[-1]["mode"] == "auto")
        return held

    assert run(scenario, Controller(ConnectionError("gone"))) == ("fp16", "fp16")


def test_a_snapshot_carries_queue_and_latencies_and_waiting_grows_with_its_age(agents_clock):
    controller, meter = Controller(), PathMeter(agents_clock)

    async def scenario(agent, engine):
        passage = meter.arrive(agents_clock() - 0.2)
        passage.submitted()
        for _ in range(3):
            passage.wrote(1)
        await until(lambda: agent.stats is not None)  # the engine says no more after it
        agents_clock.now_s += 1.0
        await until(lambda: controller.snapshots and controller.snapshots[-1]["stats_age_s"] > 0)

    run(scenario, controller, meter=meter, engine=Hanging())
    snapshot = controller.snapshots[-1]
    assert snapshot["waiting"] == 1
    assert snapshot["oldest_wait_s"] == pytest.approx(0.25 + 1.0)
    assert snapshot["ttft"]["count"] == 1
    assert snapshot["ttft"]["p50_ms"] == pytest.approx(200)
    assert snapshot["tpot"]["count"] == 2
    assert snapshot["path"]["open_streams"] == 1
    assert snapshot["path"]["in_path"] == 0
    assert snapshot["path"]["wait_p90_ms"] == pytest.approx(200)
    assert [s["seq"] for s in controller.snapshots] == list(range(1, len(controller.snapshots) + 1))


def test_the_admission_limit_follows_the_directive_and_opens_when_the_lease_ends(agents_clock):
    door = Admission(10, sequences=4)
    controller = Controller(ConnectionError("gone"))

    async def scenario(agent, engine):
        assert agent.desired_replicas is None  # a new replica must not say "no more than the usual" of its own
        ack = await apply(agent, {**directive(1, "fp8", lease_s=5.0), "admission_scale": 0.5, "desired_replicas": 7})
        assert (ack["directive"], door.limit, agent.desired_replicas) == ("fp8", 5, 7)
        for _ in range(5):
            door.enter()
        with pytest.raises(NoRoom) as full:
            door.enter()
        door.turned_away(full.value)
        await until(lambda: controller.snapshots and controller.snapshots[-1]["refused"] == 1)
        assert controller.snapshots[-1]["admission_scale"] == 0.5
        agents_clock.now_s += 5.1
        await until(lambda: controller.snapshots[-1]["admission_scale"] == 1.0)
        await until(lambda: door.limit == 10)
        assert controller.snapshots[-1]["desired_replicas"] == 7
        return agent.desired_replicas

    # The next controller comes seconds later, and the autoscaler would have ended the extra replicas at once.
    assert run(scenario, controller, door) == 7


def test_finished_requests_are_held_against_the_objectives_that_the_controller_last_told():
    controller, meter = Controller(), PathMeter()

    def evaluated():
        return controller.snapshots[-1]["slo_evaluated"] if controller.snapshots else 0

    async def scenario(agent, engine):
        for latencies in ((0.19, 0.03), (0.21, 0.03), (0.19, 0.04), (0.1, None)):  # 200 ms, 33.3 ms
            meter.judge(*latencies)
        await until(lambda: evaluated() == 4)
        await apply(agent, {**directive(1, "fp16"), "slo": {"ttft_ms": 1000, "tpot_ms": 20}})
        await until(lambda: meter.slo.ttft_ms == 1000)
        answer = Answered(Answer.MIXED, AskedPrecision.AUTO)
        for latencies in ((0.9, 0.019), (0.1, 0.021)):
            meter.judge(*latencies, answer=answer)
            meter.requests.answered(answer)
        await until(lambda: evaluated() == 6)

    began_s = time.monotonic()
    run(scenario, controller, meter=meter)
    snapshot = controller.snapshots[-1]
    assert (snapshot["slo_evaluated"], snapshot["within_slo"]) == (6, 3)
    assert [snapshot[f"answers_{each}"] for each in Answer] == [0, 0, 0, 2]
    (within,) = [family for family in meter.requests.collect() if family.name == "nestedfp_answers_within_slo"]
    assert [s.labels["precision"] for s in within.samples if s.value == 1 and s.name.endswith("_total")] == ["mixed"]
    assert 0 < snapshot["ready_for_s"] < time.monotonic() - began_s


class Hanging(Engine):
    """Answers once and then no more, until it is let go."""

    def __init__(self):
        super().__init__()
        self.go = asyncio.Event()
        self.answers = 0

    async def __call__(self, utility, *args):
        if utility == "nestedfp_stats" or self.answers:
            if self.answers:
                await self.go.wait()
            self.answers += 1
        return await super().__call__(utility, *args)


def test_an_engine_that_hangs_is_noticed_by_its_silence_and_snapshots_carry_the_age_of_what_they_say(monkeypatch):
    monkeypatch.setattr("deploy.agent.agent.ENGINE_TIMEOUT_S", 0.05)
    monkeypatch.setattr("deploy.agent.agent.HUNG_AFTER_S", 0.2)
    controller = Controller()

    async def scenario(agent, engine):
        await until(lambda: engine.answers == 1)
        await until(lambda: agent.stats_age_s > 0.2)
        with pytest.raises(RuntimeError, match="has not answered for"):
            agent.check_engine()
        await until(lambda: controller.snapshots and controller.snapshots[-1]["stats_age_s"] > 0.2)
        assert engine.answers == 1, "no second call stands behind the first one"
        engine.go.set()
        await until(lambda: agent.fault is None)

    run(scenario, controller, engine=Hanging())


def test_a_dead_engine_shows_in_the_next_report_although_it_owes_an_answer_for_ever(agents_clock):
    controller, dead = Controller(), []

    async def scenario(agent, engine):
        await until(lambda: controller.snapshots)
        assert (controller.snapshots[-1]["ready"], controller.snapshots[-1]["fault"]) == (True, None)
        dead.append(True)
        before = len(controller.snapshots)
        # Time stands still: the age of its statistics, which would tell after seconds, cannot be what tells.
        await until(lambda: len(controller.snapshots) > before)
        assert not any(snapshot["ready"] for snapshot in controller.snapshots[before:])
        assert controller.snapshots[-1]["fault"] == agent.fault == "its engine has died"
        with pytest.raises(RuntimeError, match="its engine has died"):
            agent.check_engine()

    run(scenario, controller, engine=Hanging(), dead=lambda: bool(dead))


def test_what_is_in_an_engine_that_hangs_is_given_up_after_it_takes_no_more_and_a_new_directive_stops_no_report(
    monkeypatch, agents_clock
):
    for name, seconds in (("ENGINE_TIMEOUT_S", 0.05), ("LATE_AFTER_S", 0.1), ("HUNG_AFTER_S", 1.5)):
        monkeypatch.setattr(f"deploy.agent.agent.{name}", seconds)
    monkeypatch.setattr("deploy.agent.agent.GIVEN_UP_AFTER_S", 1.5)
    monkeypatch.setattr("deploy.agent.agent.WATCH_PERIOD_S", 0.02)
    controller, given_up, seen = Controller(), [], []

    async def scenario(agent, engine):
        await until(lambda: engine.answers == 1)
        await until(lambda: agent.stats is not None)
        controller.directive = directive(4, "fp8")  # the engine will not take it
        agents_clock.now_s += 0.2
        assert agent.engine_is_late
        assert agent.fault is None, "late is not yet hung"
        agents_clock.now_s += 1.4
        assert agent.fault is not None
        seen.append(len(given_up))
        await until(lambda: controller.snapshots and not controller.snapshots[-1]["ready"])
        assert "has not answered for" in controller.snapshots[-1]["fault"]
        await until(lambda: given_up)
        engine.go.set()
        await until(lambda: controller.snapshots[-1]["ready"])
        assert not agent.engine_is_late
        await until(lambda: engine.directives[-1]["mode"] == "fp8")

    run(scenario, controller, engine=Hanging(), give_up=given_up.append)
    assert seen == [0], "given up later than found to hang"
    assert {type(error).__name__ for error in given_up} == {"EngineHung"}
    assert "this replica is to be replaced: its engine has not answered for" in str(given_up[0])


def test_a_pause_of_the_replicas_own_process_costs_no_request(monkeypatch):
    monkeypatch.setattr("deploy.agent.agent.HUNG_AFTER_S", 0.3)
    monkeypatch.setattr("deploy.agent.agent.GIVEN_UP_AFTER_S", 0.3)
    monkeypatch.setattr("deploy.agent.agent.WATCH_PERIOD_S", 0.05)
    monkeypatch.setattr("deploy.agent.agent.ENGINE_TIMEOUT_S", 0.05)
    given_up = []

    async def scenario(agent, engine):
        await until(lambda: agent.stats is not None)
        for _ in range(3):
            time.sleep(0.8)  # nothing in this process runs meanwhile
            assert agent.stats_age_s > 0.3
            assert agent.fault is not None, "so it looks at first"
            await until(lambda: agent.fault is None)

    run(scenario, Controller(), give_up=given_up.append)
    assert not given_up
