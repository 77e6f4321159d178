"""A directive's way to the engine and its acknowledgement's way back: controller, agent and vLLM's scheduler, without a model.

The controller is a call away instead of a process.
"""

import asyncio
import logging
from types import SimpleNamespace

import vllm_parts  # vLLM, imported with its warnings kept quiet
from test_agent import Controller, Engine, directive, run, until
from vllm.v1.engine.core import EngineCore

from controller.config import ControllerConfig
from controller.live.actor import ControllerActor
from deploy.agent.agent import ReplicaAgent


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
        agent = ReplicaAgent("r0", core, actor.report, config)
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


async def acknowledged(controller, epoch):
    """Wait for a snapshot that names this epoch as the engine's."""
    await until(lambda: controller.snapshots and controller.snapshots[-1]["epoch"] == epoch)


def test_the_snapshot_after_a_directive_acknowledges_it():
    controller = Controller(directive(3, "fp8"))

    async def scenario(agent, engine):
        await acknowledged(controller, 3)
        assert engine.directives[-1]["mode"] == controller.snapshots[-1]["directive"] == "fp8"

    run(scenario, controller, engine=Following())


class Following(Engine):
    """Says what it was told, as the engine core does; takes no directive of epoch 1, and that of epoch 5 when it is let go."""

    def __init__(self):
        super().__init__()
        self.go = asyncio.Event()

    async def __call__(self, utility, *args):
        if utility == "nestedfp_set_directive":
            if args[0]["epoch"] == 1:
                raise ValueError("no such mode here")
            if args[0]["epoch"] == 5:
                await self.go.wait()
        stats = await super().__call__(utility, *args)
        told = self.directives[-1]
        return stats and {**stats, "directive": told["mode"], "epoch": told["epoch"]}


def test_a_directive_that_the_engine_refuses_is_not_acknowledged_and_the_next_one_is_taken(caplog):
    controller = Controller(directive(1, "fp8"))

    async def scenario(agent, engine):
        await until(lambda: "the directive could not be put in force" in caplog.text)
        assert all(snapshot["epoch"] == 0 for snapshot in controller.snapshots)
        controller.directive = directive(2, "fp16")
        await acknowledged(controller, 2)

    run(scenario, controller, engine=Following())


def test_an_engine_in_a_long_step_costs_no_lease_and_its_directive_is_not_acknowledged_before():
    controller = Controller(directive(5, "fp8", lease_s=60.0))

    async def scenario(agent, engine):
        await until(lambda: len(controller.snapshots) > 5)
        assert controller.snapshots[-1]["epoch"] == 0
        assert agent.directed == "fp8", "it is in force for admission, and the lease runs"
        engine.go.set()
        await acknowledged(controller, 5)

    run(scenario, controller, engine=Following())


def test_a_controller_that_goes_is_said_once_and_the_next_one_is_asked(caplog):
    controller = Controller(ConnectionError("the actor died"))

    async def scenario(agent, engine):
        await until(lambda: len(controller.snapshots) > 5)
        controller.directive = directive(3, "fp8")
        await until(lambda: engine.directives[-1]["mode"] == "fp8")

    with caplog.at_level(logging.INFO):
        run(scenario, controller)
    assert caplog.text.count("the controller does not answer") == 1
    assert caplog.text.count("the controller answers again") == 1
