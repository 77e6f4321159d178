"""The replica's engine: vLLM's ``AsyncLLM`` and the objects that serve its API, as ``vllm serve`` makes them.

A single rank runs in the engine core, as ``vllm serve`` has it on a GPU, on a CPU as well; several are processes of its own.
"""

import argparse
import types
from collections.abc import Mapping
from typing import Any

from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from deploy.replica.arguments import parsed


class ReplicaEngine:
    """A running engine."""

    def __init__(self, client: Any, app: Any) -> None:
        self.client, self.app = client, app  # vLLM's ``AsyncLLM`` and its application
        self._processes = client.engine_core.resources.engine_manager.processes  # of the engine core

    @classmethod
    async def start(cls, arguments: Mapping[str, Any]) -> "ReplicaEngine":
        """Start an engine; ``arguments`` as ``vllm serve`` takes them, as JSON. Raises whatever keeps it from starting."""
        engine, front = parsed(arguments)
        try:
            config = engine.create_engine_config(UsageContext.OPENAI_API_SERVER)
        except Exception as error:  # pydantic's own cannot leave this process
            raise RuntimeError(f"vLLM refuses its configuration: {error}") from None
        parallel = config.parallel_config
        if parallel.world_size == 1:
            # After vLLM has made its configuration: on a CPU it insists on a worker process, because only such a one's threads
            # could be set up. Ours are: the engine core inherits OMP_NUM_THREADS from this process.
            parallel.distributed_executor_backend = "uni"
        client = AsyncLLM.from_vllm_config(
            config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            enable_log_requests=engine.enable_log_requests,
            aggregate_engine_logging=engine.aggregate_engine_logging,
            disable_log_stats=engine.disable_log_stats,
        )
        try:
            await client.reset_mm_cache()  # of what profiling put there
            options = argparse.Namespace(**(vars(front) | vars(engine)))
            tasks = await client.get_supported_tasks()
            app = build_app(options, tasks, client.model_config)
            await init_app_state(client, app.state, options, tasks)
        except BaseException:
            client.shutdown()  # else its core holds the memory that the next try needs
            raise
        # vLLM's handler of a dead engine's errors would stop the server that it has put there.
        app.state.server = types.SimpleNamespace()
        return cls(client, app)

    @property
    def dead(self) -> bool:
        """Whether the engine core has ended, or has said that it cannot go on. vLLM knows the first a tenth of a second later."""
        return bool(self.client.errored) or not all(process.is_alive() for process in self._processes)

    def give_up(self, error: Exception) -> None:
        """End every request that is in the engine with this error, whatever the engine does."""
        self.client.output_processor.propagate_error(error)

    async def call(self, utility: str, *args: Any) -> Any:
        """Call a utility of the engine core; answered between two steps, a directive too."""
        return await self.client.engine_core.call_utility_async(utility, *args)
