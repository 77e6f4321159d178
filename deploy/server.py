"""One replica: the engine, its control-plane agent, and the methods that the controller calls."""

import asyncio
import logging
from typing import Any

from ray import serve
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer

from controller.config import ControllerConfig
from deploy.admission import Admission
from deploy.agent import ReplicaAgent
from deploy.engine import NestedFPEngine
from deploy.routing import PRECISION_KEY
from deploy.scaling import DESIRED_KEY
from deploy.warmup import warm_up
from nestedfp.vllm_plugin import failure, frontend

log = logging.getLogger(__name__)

CONTROLLER_ACTOR = "nestedfp_controller"


class ServeControllerLink:
    """Reaches the controller actor of this deployment; looks it up anew after a failure, because it may be a new one."""

    def __init__(self) -> None:
        self._actor: Any = None

    async def report(self, snapshot: dict[str, Any]) -> dict[str, Any] | None:
        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(serve.get_deployment_actor, CONTROLLER_ACTOR)
            directive: dict[str, Any] | None = await self._actor.report.remote(snapshot)
            return directive
        except BaseException:
            self._actor = None
            raise


class NestedFPServer(LLMServer):  # type: ignore[misc]
    """Ray Serve LLM's server with a NestedFP engine under the controller's direction.

    Args:
        llm_config: the model and its engine.
        controller: ``ControllerConfig`` as a dictionary.
        precision: False for a plain engine without modes (the peer in comparisons).
        admission_limit: requests in this replica at most; None: no limit until the controller sheds load.
    """

    _default_engine_cls = NestedFPEngine

    async def __init__(
        self,
        llm_config: LLMConfig,
        *,
        controller: dict[str, Any],
        precision: bool,
        admission_limit: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._agent: ReplicaAgent | None = None
        # Where there are GPUs, Ray makes the engine's configuration in another process, so that the plugin's own wiring
        # does not reach the front end in this one: no pins would be checked and no tokens counted.
        frontend.install()
        with failure.explained():
            await super().__init__(llm_config, **kwargs)
            await warm_up(self.engine, llm_config.model_id)
        admission = Admission(admission_limit, sequences=llm_config.engine_kwargs["max_num_seqs"])
        self.engine.admission = admission
        if not precision:
            return
        await self.engine.call("nestedfp_warmed_up")
        self._agent = ReplicaAgent(
            replica_id=serve.get_replica_context().replica_id.unique_id,
            engine=self.engine.call,
            controller=ServeControllerLink(),
            config=ControllerConfig.model_validate(controller),
            admission=admission,
        )
        frontend.observe_latencies(self._agent.observe)
        frontend.observe_finished(self._agent.finished)
        await self._agent.start()

    async def apply_directive(self, directive: dict[str, Any]) -> dict[str, Any]:
        """Put a directive in force and return the acknowledgement; called by the controller's broadcast."""
        if self._agent is None:
            raise RuntimeError("this replica runs a plain engine: it has no precision to direct")
        return await self._agent.apply(directive)

    async def record_routing_stats(self) -> dict[str, Any]:
        """What the request router knows of this replica; called by Serve every second."""
        stats: dict[str, Any] = await super().record_routing_stats()
        return stats if self._agent is None else {**stats, PRECISION_KEY: self._agent.directed}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the autoscaler's policy hears from this replica; called by Serve where it scales this deployment."""
        return {DESIRED_KEY: 0.0 if self._agent is None else float(self._agent.desired_replicas)}
