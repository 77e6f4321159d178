"""The replica's agent against an engine and a controller in memory: leases, catching up, failures of either side."""

import asyncio

from controller.config import ControllerConfig
from deploy.admission import Admission
from deploy.agent import ReplicaAgent
from deploy.latency import SlidingWindow

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
            self.directives.append(args[0])
            return {}
        return dict(STATS)


class Controller:
    """Answers snapshots with a directive, or is unreachable."""

    def __init__(self, directive=None):
        self.directive = directive
        self.snapshots = []

    async def report(self, snapshot):
        self.snapshots.append(snapshot)
        if isinstance(self.directive, Exception):
            raise self.directive
        return self.directive


def directive(epoch, mode, lease_s=5.0):
    rule = {"fp8_step_tokens": None, "fp8_wait_s": None, "fp8_budget_fraction": None}
    return {"epoch": epoch, "mode": mode, "lease_s": lease_s, "reason": "test", "rule": rule}


def run(scenario, controller, admission=None):
    async def main():
        engine = Engine()
        config = ControllerConfig.model_validate({"report_period_s": 0.02})
        agent = ReplicaAgent("r0", engine, controller, config, admission)
        await agent.start()
        try:
            return await scenario(agent, engine)
        finally:
            await agent.stop()

    return asyncio.run(main())


def test_a_new_replica_starts_with_the_fallback_and_catches_up_from_its_first_answer():
    async def scenario(agent, engine):
        await asyncio.sleep(0.15)
        return [d["mode"] for d in engine.directives]

    assert run(scenario, Controller(directive(7, "fp8"))) == ["auto", "fp8"]


def test_a_broadcast_is_acknowledged_after_the_engine_took_it_and_old_epochs_are_ignored():
    async def scenario(agent, engine):
        ack = await agent.apply(directive(3, "fp8"))
        assert (ack["epoch"], ack["directive"], ack["accepted"]) == (3, "fp8", True)
        assert engine.directives[-1] == {
            "mode": "fp8",
            "epoch": 3,
            "rule": {"fp8_step_tokens": None, "fp8_wait_s": None, "fp8_budget_fraction": None},
        }
        late = await agent.apply(directive(2, "fp16"))
        assert (late["epoch"], late["accepted"]) == (3, False)
        return engine.directives[-1]["mode"]

    assert run(scenario, Controller()) == "fp8"


def test_without_a_controller_the_lease_ends_in_the_fallback():
    async def scenario(agent, engine):
        await agent.apply(directive(1, "fp8", lease_s=0.1))
        assert engine.directives[-1]["mode"] == "fp8"
        await asyncio.sleep(0.3)
        return engine.directives[-1]["mode"]

    assert run(scenario, Controller(ConnectionError("gone"))) == "auto"


def test_a_snapshot_carries_queue_and_latencies_and_waiting_grows_with_its_age():
    controller = Controller()

    async def scenario(agent, engine):
        agent.observe([0.2], [0.01, 0.03])
        await asyncio.sleep(0.1)

    run(scenario, controller)
    snapshot = controller.snapshots[-1]
    assert snapshot["waiting"] == 1
    assert snapshot["oldest_wait_s"] >= 0.25
    assert snapshot["ttft"] == {"count": 1, "p50_ms": 200.0, "p90_ms": 200.0, "p99_ms": 200.0}
    assert snapshot["tpot"]["count"] == 2
    assert [s["seq"] for s in controller.snapshots] == list(range(1, len(controller.snapshots) + 1))


def test_a_replica_does_what_is_said_of_it_by_name():
    async def scenario(agent, engine):
        ack = await agent.apply({**directive(3, "fp16"), "exceptions": {"r0": "fp8", "r1": "auto"}})
        assert (ack["epoch"], ack["directive"]) == (3, "fp8")
        # The answer to a snapshot says the same without names.
        renewed = await agent.apply(directive(3, "fp8"))
        assert (renewed["reason"], renewed["accepted"]) == ("renewed", True)
        return engine.directives[-1]["mode"], agent.directed

    assert run(scenario, Controller()) == ("fp8", "fp8")


def test_the_admission_limit_follows_the_directive_and_opens_when_the_lease_ends():
    door = Admission(10, sequences=4)
    controller = Controller(ConnectionError("gone"))

    async def scenario(agent, engine):
        ack = await agent.apply({**directive(1, "fp8", lease_s=0.1), "admission_scale": 0.5, "desired_replicas": 7})
        assert (ack["admission_scale"], door.limit, agent.desired_replicas) == (0.5, 5, 7)
        assert [door.enter() for _ in range(6)].count(False) == 1
        await asyncio.sleep(0.3)
        return door.limit, agent.desired_replicas

    assert run(scenario, controller, door) == (10, 0)
    assert {s["admission_scale"] for s in controller.snapshots} >= {1.0}
    assert controller.snapshots[-1]["refused"] == 1


def test_finished_requests_are_held_against_the_objectives_that_the_controller_last_told():
    controller = Controller()

    async def scenario(agent, engine):
        agent.finished([(0.19, 0.03), (0.21, 0.03), (0.19, 0.04), (0.1, None)])  # 200 ms, 33.3 ms
        await agent.apply({**directive(1, "fp16"), "slo_ttft_ms": 1000, "slo_tpot_ms": 20})
        agent.finished([(0.9, 0.019), (0.1, 0.021)])
        await asyncio.sleep(0.1)

    run(scenario, controller)
    snapshot = controller.snapshots[-1]
    assert (snapshot["judged"], snapshot["within_slo"]) == (6, 3)
    assert 0 < snapshot["ready_for_s"] < 5


def test_a_sliding_window_forgets():
    window = SlidingWindow(span_s=5.0)
    for i in range(10):
        window.add(float(i), 10.0 * i)
    assert window.summary(9.0).p50_ms == 60.0  # nearest rank of 40, 50, ..., 90
    assert window.summary(9.0).count == 6
    assert window.summary(100.0).count == 0
