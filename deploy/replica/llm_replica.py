"""One replica: the engine, its control-plane agent, and the methods that the controller calls."""

import asyncio
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import serve
from vllm import envs

from controller.config import ControllerConfig
from deploy.access import tokenizer_queue
from deploy.access.access_log import open_log, serve_logs
from deploy.access.admission import TOKENS_IN_QUEUE, Admission
from deploy.access.keys import Keys, path_of
from deploy.access.peers import PeerView
from deploy.agent.agent import ReplicaAgent
from deploy.agent.room_page import room_page
from deploy.config import EngineSection, HttpSection
from deploy.control.controller_link import ServeControllerLink
from deploy.front import streams
from deploy.front.app import Front
from deploy.front.checks import grammars
from deploy.front.context import PathMeter
from deploy.front.generate import Generate, Inexact, Queueing
from deploy.front.handover import stand_before_engine, take_over
from deploy.front.routes import text
from deploy.front.routes.pages import Shown
from deploy.haproxy.launcher import require_environment
from deploy.metrics import bulk
from deploy.metrics.openmetrics import CONTENT_TYPE
from deploy.metrics.replica_page import ReplicaMetrics
from deploy.replica import drain
from deploy.replica.health_routes import show_health
from deploy.replica.probe import probe_modes
from deploy.replica.vllm_engine import ReplicaEngine
from deploy.replica.warmup import warm_up
from deploy.scaling import DESIRED_KEY
from nestedfp.vllm_plugin import failure, frontend, short_logs
from nestedfp.vllm_plugin.options import rounds_kv

log = logging.getLogger(__name__)

# After which a thread that makes a page or renders a chat hands the interpreter back to the event loop, which has tokens to write;
# Python's own 5 ms would be a third of a step.
SWITCH_INTERVAL_S = 0.0005


class NestedFPServer:
    """A vLLM engine under the controller's direction, and its API.

    Args:
        model: the name that requests give.
        arguments: vLLM's of the engine and its server.
        engine, http, controller: sections of the configuration, as dictionaries.
    """

    async def __init__(
        self,
        *,
        model: str,
        arguments: Mapping[str, Any],
        engine: dict[str, Any],
        http: dict[str, Any],
        controller: dict[str, Any],
    ) -> None:
        require_environment()
        settings = EngineSection.model_validate(engine)
        self._http = HttpSection.model_validate(http)
        context = serve.get_replica_context()
        self._name = name = context.replica_id.unique_id
        self._labels = {"application": context.app_name, "replica": name, "model": model}
        self._agent: ReplicaAgent | None = None  # a plain engine has none
        self._front: Front | None = None  # until Serve has it built, after this
        self._keys = Keys(
            path_of(self._http.keys_file), parts=lambda: 1 if self._agent is None else self._agent.replicas
        )
        given = self._http.access_log_folder
        folder = serve_logs() if given is None else Path(given).expanduser()
        self._meter = PathMeter(log=open_log(folder, name).add if self._http.access_log else None)
        # At the start; a plain engine has no precisions.
        self._checked: dict[str, Any] = {"probe_s": {}, "self_checks": []}
        self._inexact: Inexact | None = None
        frontend.install()  # an engine without nested weights does not do it
        streams.install()
        short_logs.install()
        with failure.explained():
            self.engine = await ReplicaEngine.start(arguments)
            self._grammars = grammars.of_client(self.engine.client, settings.grammar_cpu_s)
            self._grammars.start()  # beside the rest of this start: nobody's first request is to wait for it
            drain.install(self.engine.give_up, lambda: 0 if self._front is None else self._front.asked)
            await warm_up(self.engine, model)
        # vLLM looks at the environment several times for each output unless it is told that nothing changes any more.
        envs.enable_envs_cache()
        config = self.engine.client.vllm_config
        precision, quantization = settings.quantization == "nestedfp", config.model_config.quantization
        if not precision and quantization is not None:  # a plain engine runs what its checkpoint says
            self._inexact = Inexact.CHECKPOINT
        elif rounds_kv(config):
            self._inexact = Inexact.KV_CACHE
        self._queueing = Queueing(settings.queue_deadline_s, config.scheduler_config.policy == "priority")
        capacity = config.cache_config.kv_cache_size_tokens
        self._admission = Admission(
            settings.admission_limit,
            sequences=settings.max_num_seqs,
            tokens=settings.admission_tokens or (None if capacity is None else TOKENS_IN_QUEUE * capacity),
            longest=config.model_config.max_model_len,
            in_order=not self._queueing.by_priority,
        )
        if not precision:
            self._page = await self._metrics()
            return
        stats = await self.engine.call("nestedfp_stats")
        self._checked = {
            "probe_s": await probe_modes(self.engine, stats["fp16_only"]),
            "self_checks": await self.engine.call("nestedfp_self_checks"),
        }
        await self.engine.call("nestedfp_warmed_up")
        link = ServeControllerLink(name)
        self._agent = ReplicaAgent(
            replica_id=name,
            engine=self.engine.call,
            report=link.report,
            call=link.next_directive,
            config=ControllerConfig.model_validate(controller),
            admission=self._admission,
            meter=self._meter,
            dead=lambda: self.engine.dead,
            give_up=self.engine.give_up,
        )
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        await self._agent.start()
        self._page = await self._metrics()

    async def _metrics(self) -> ReplicaMetrics:
        """Make the replica's metrics; after the engine has started."""
        layers = await self.engine.call("nestedfp_layers") if self._agent is not None else {}
        bulk.lean_statistics()
        histograms = bulk.take_over(self.engine.client)
        self._flushing = asyncio.create_task(bulk.flush_for_ever(histograms))
        return ReplicaMetrics(self._labels, self._meter, self._admission, layers, histograms)

    async def metrics_page(self) -> str:
        """Return the replica's metrics (OpenMetrics); called by its HTTP server, and by the application's page."""
        # In a thread: some ten milliseconds during which tokens are to be written.
        return await asyncio.to_thread(self._page.text, self._agent, self._meter.stats(time.monotonic()))

    async def _show_metrics(self) -> Shown:
        return Shown(200, CONTENT_TYPE, (await self.metrics_page()).encode())

    async def __serve_build_asgi_app__(self) -> Any:
        """Build the application that this replica's HTTP server runs; called by Serve after the constructor."""
        app = self.engine.app
        routes = text.routes(app.state)
        stand_before_engine((route.serving for route in routes.values()), self._grammars)
        take_over(app.state.openai_serving_completion, app.state.openai_serving_chat)
        tokenizer_queue.install(self.engine.client.renderer._executor)
        generate = Generate(
            routes,
            self.engine.client,
            self._admission,
            self._meter,
            self._agent or PeerView(),
            self._http.max_body_bytes,
            self._keys,
            self._queueing,
            streams.taps_of(self.engine.client, self._meter.delivered),
            self._inexact,
        )
        pages = {
            "/metrics": self._show_metrics,
            "/health": lambda: self._show_health("healthy", {}),
            "/ready": lambda: self._show_health("ready", self._checked),
            "/room": self._show_room,
        }
        self._front = Front(app, generate, pages)
        return self._front

    async def _show_health(self, good: str, more: Mapping[str, Any]) -> Shown:
        age_s = None if self._agent is None else self._agent.stats_age_s
        return await show_health(self._name, good, self.check_health, {"stats_age_s": age_s, **more})

    async def _show_room(self) -> Shown:
        agent = self._agent
        return room_page("", None, 0.0) if agent is None else room_page(agent.directed, agent.stats, agent.stats_age_s)

    async def __del__(self) -> None:
        # Serve calls it at the end of a drain.
        if self._agent is not None:
            await self._agent.stop()

    async def check_health(self) -> None:
        """Fail where the engine has died or hangs; called by Serve, which then replaces this replica."""
        await self.engine.client.check_health()
        if self._agent is not None:
            self._agent.check_engine()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the autoscaler's policy hears from this replica; called by Serve where it scales this deployment."""
        desired = 0 if self._agent is None else self._agent.desired_replicas
        # A replica that takes the place of the last one knows nothing yet: 0 would end what that one had been told.
        return {} if desired is None else {DESIRED_KEY: float(desired)}
