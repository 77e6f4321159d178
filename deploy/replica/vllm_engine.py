"""The replica's engine: Ray Serve LLM's vLLM engine, and the attributes of it that the replica needs.

The private attributes of Ray's class are touched in this file only. Ray Serve LLM gives every rank a process of its own, to which
each step crosses and back, and which imports vLLM once more; ``vllm serve`` on a GPU keeps a single rank in the engine core,
and so does this, on a CPU as well.
"""

import math
import os
import uuid
from collections.abc import Sequence
from typing import Any

import ray
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine, _get_vllm_engine_config
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from vllm.entrypoints.launchers.cli_args import FrontendArgs

from deploy.replica.process_life import Life


class NestedFPEngine(VLLMEngine):  # type: ignore[misc]
    """VLLMEngine with a way to the engine core; a single rank runs in the engine core's own process."""

    _lives: Sequence[Life] = ()  # of the engine core's processes

    @property
    def client(self) -> Any:
        """vLLM's ``AsyncLLM``."""
        return self._engine_client

    @property
    def dead(self) -> bool:
        """Whether the engine core has ended, begins to, or has said that it cannot go on. vLLM knows a tenth of a second later."""
        return bool(self._engine_client.errored) or any(life.ending for life in self._lives)

    def give_up(self, error: Exception) -> None:
        """End every request that is in the engine with this error, whatever the engine does."""
        self._engine_client.output_processor.propagate_error(error)

    async def call(self, utility: str, *args: Any) -> Any:
        """Call a utility of the engine core; answered between two steps, a directive at once."""
        return await self._engine_client.engine_core.call_utility_async(utility, *args)

    @property
    def makes_vectors(self) -> bool:
        """Whether the model makes embeddings, scores or classes; False: text."""
        return bool(self._engine_client.model_config.runner_type == "pooling")

    async def vector(self, prompt: str) -> None:
        """Have the model make what it makes of a prompt, and wait for it."""
        from vllm import PoolingParams

        config = self._engine_client.model_config
        params = PoolingParams(task=config.get_pooling_task(await self._engine_client.get_supported_tasks()))
        params.verify(config)
        async for _ in self._engine_client.encode(prompt, params, f"vector-{uuid.uuid4().hex}"):
            pass

    @property
    def _in_the_core(self) -> bool:
        """Whether the engine has one rank."""
        engine_kwargs = self.llm_config.get_engine_config().engine_kwargs
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        return math.prod(int(engine_kwargs.get(name, 1)) for name in sizes) == 1

    async def start(self) -> None:
        """Start the engine. Raises whatever keeps it from starting."""
        # Models come from disk. Ray Serve LLM would look for downloads on every node first, in a process that takes as long
        # to import vLLM as this one did.
        self.llm_config.get_or_create_callback().ctx.run_init_node = False
        await super().start()
        manager = self._engine_client.engine_core.resources.engine_manager
        self._lives = [Life(process.pid) for process in manager.processes]

    def _prepare_engine_config(self, callback_ctx: Any) -> Any:
        engine = self.llm_config.get_engine_config()
        if not (self._in_the_core and engine.accelerator.requires_remote_initialization):
            return super()._prepare_engine_config(callback_ctx)
        # Here, with the GPU in sight, instead of in a task that has it. The engine core inherits this environment.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus_of(callback_ctx.placement_group))
        arguments, config = _get_vllm_engine_config(self.llm_config)
        return arguments, FrontendArgs(**engine.frontend_kwargs), config

    def _start_async_llm_engine(
        self, engine_args: Any, engine_config: Any, placement_group: PlacementGroup | None
    ) -> Any:
        if self._in_the_core:
            # After vLLM has made its configuration: on a CPU it insists on a worker process, because only such a one's threads
            # could be set up. Ours are: the engine core inherits OMP_NUM_THREADS from this process.
            engine_config.parallel_config.distributed_executor_backend = "uni"
            placement_group = None
        return super()._start_async_llm_engine(engine_args, engine_config, placement_group)


def gpus_of(placement_group: PlacementGroup) -> list[str]:
    """Return the ids, as CUDA_VISIBLE_DEVICES takes them, of the first GPU that this placement group holds.

    The group's owner keeps the GPU although no task of it runs there.
    """

    # A local function travels whole: the worker need not import this module, and vLLM with it.
    def own_gpus() -> list[str]:
        return [str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids()["GPU"]]

    strategy = PlacementGroupSchedulingStrategy(placement_group=placement_group, placement_group_bundle_index=0)
    asked = ray.remote(own_gpus).options(num_cpus=0, num_gpus=0.001, scheduling_strategy=strategy)
    ids: list[str] = ray.get(asked.remote())
    return ids
