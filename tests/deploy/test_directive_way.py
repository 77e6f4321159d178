"""A directive's way to the engine and its acknowledgement's way back: controller, agent and vLLM's scheduler, without a model.

The controller is a call away instead of a process.
"""

import asyncio
import logging
from functools import partial
from types import SimpleNamespace

import vllm_parts  # vLLM, imported with its warnings kept quiet
from test_agent import Controller, Engine, directive, run, until
from vllm.v1.engine.core import EngineCore

from controller.config import ControllerConfig
from controller.live.actor import ControllerActor
from deploy.access.admission import Admission
from deploy.agent import agent as agents
from deploy.agent.agent import ReplicaAgent
from deploy.front.context import PathMeter


class Core:
    """An engine core's scheduler and utilities; nobody runs its main thread."""

    def __init__(self):
        self.engine = vllm_parts.Engine()
        self.scheduler = self.engine.scheduler
        self.nestedfp_asked_workers = True
        self.model_executor = SimpleNamespace(collective_rpc=lambda name: [None if name.endswith("costs") else 1.0])

    async def __call__(self, utility, *args):
        return getattr(EngineCore, utility)(self, *args)

    def step_mode(self):
        """The precision of a step that is scheduled now."""
        self.engine.add(vllm_parts.engine_request(f"request {len(self.scheduler.requests)}", 5))
        return self.engine.schedule().nestedfp_mode.value


def test_an_order_is_acknowledged_when_the_next_step_runs_under_it():
    async def main():
        core, config = Core(), ControllerConfig.model_validate({"lease_s": 60.0})
        actor = ControllerActor(config.model_dump(mode="json"))
        call = partial(actor.next_directive, "r0")
        agent = ReplicaAgent("r0", core, actor.report, call, config, Admission(None, 1), PathMeter())
        await agent.start()
        try:
            for mode in ("fp8", "fp16"):
                status = await actor.set_override(mode)
                (replica,) = status["replicas"]
                assert (replica["acked"], replica["epoch"]) == (True, status["epoch"])
                stats = core.scheduler.nestedfp_stats()
                assert (stats["directive"], stats["epoch"]) == (mode, status["epoch"])
                assert core.step_mode() == mode
        finally:
            await agent.stop()
            await actor.close()

    asyncio.run(main())


class Asked(Controller):
    """Notes what comes with each call."""

    def __init__(self, directive=None):
        super().__init__(directive)
        self.calls = []

    async def call(self, ack, seen):
        self.calls.append((ack and ack["epoch"], seen))
        return await super().call(ack, seen)


def test_an_acknowledgement_goes_with_the_next_call_and_only_with_that(monkeypatch):
    monkeypatch.setattr(agents, "CALL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(agents, "PAUSE_S", 0.01)
    controller = Asked(directive(1, "fp8"))

    async def scenario(agent, engine):
        await until(lambda: len(controller.calls) > 2)  # the second one is answered too late

    run(scenario, controller)
    assert controller.calls[:3] == [(None, None), (1, "1"), (None, "1")]


class Refusing(Engine):
    """Takes no FP8."""

    async def __call__(self, utility, *args):
        if utility == "nestedfp_set_directive" and args[0]["mode"] == "fp8":
            raise ValueError("no such mode here")
        return await super().__call__(utility, *args)


def test_a_directive_that_the_engine_refuses_is_not_acknowledged_and_the_next_one_is_taken(monkeypatch, caplog):
    monkeypatch.setattr(agents, "CALL_TIMEOUT_S", 0.1)
    controller = Asked(directive(1, "fp8"))

    async def scenario(agent, engine):
        await until(lambda: len(controller.calls) > 1)
        controller.directive = directive(2, "fp16")
        await until(lambda: controller.calls[-1][0] == 2)
        assert engine.directives[-1]["mode"] == "fp16"

    run(scenario, controller, engine=Refusing())
    assert 1 not in [epoch for epoch, _ in controller.calls]
    assert "the directive could not be put in force" in caplog.text


class Slow(Engine):
    """In a long step: answers when it is let go."""

    def __init__(self):
        super().__init__()
        self.go = asyncio.Event()

    async def __call__(self, utility, *args):
        if utility == "nestedfp_set_directive" and self.directives:  # not the one at the start
            await self.go.wait()
        return await super().__call__(utility, *args)


def test_an_engine_in_a_long_step_costs_no_lease_and_its_directive_is_not_acknowledged_before():
    controller = Asked(directive(1, "fp8", lease_s=60.0))

    async def scenario(agent, engine):
        await until(lambda: len(controller.calls) > 1)
        assert controller.calls[1] == (None, "1")
        assert agent.directed == "fp8", "it is in force for admission, and the lease runs"
        engine.go.set()
        await until(lambda: engine.directives[-1]["mode"] == "fp8")

    run(scenario, controller, engine=Slow())


def test_a_controller_that_goes_is_said_once_and_the_next_one_is_called(monkeypatch, caplog):
    monkeypatch.setattr(agents, "PAUSE_S", 0.01)
    controller = Asked(ConnectionError("the actor died"))

    async def scenario(agent, engine):
        await until(lambda: len(controller.calls) > 5)
        controller.directive = directive(3, "fp8")
        await until(lambda: engine.directives[-1]["mode"] == "fp8")

    with caplog.at_level(logging.INFO):
        run(scenario, controller)
    assert caplog.text.count("the controller does not answer the call for directives") == 1
    assert caplog.text.count("the controller answers the call for directives again") == 1
