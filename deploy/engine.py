"""The replica's engine: Ray Serve LLM's vLLM engine, and the attributes of it that the replica needs.

The private attributes of Ray's class are touched in this file only.
"""

import os
from typing import Any

import ray
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class NestedFPEngine(VLLMEngine):  # type: ignore[misc]
    """VLLMEngine with a way to the engine core; a single rank runs in the engine core's own process."""

    @property
    def client(self) -> Any:
        """vLLM's ``AsyncLLM``."""
        return self._engine_client

    async def call(self, utility: str, *args: Any) -> Any:
        """Call a utility of the engine core; answered between two steps."""
        return await self._engine_client.engine_core.call_utility_async(utility, *args)

    def _start_async_llm_engine(
        self, engine_args: Any, engine_config: Any, placement_group: PlacementGroup | None
    ) -> Any:
        parallel = engine_config.parallel_config
        if placement_group is not None and parallel.distributed_executor_backend == "ray" and parallel.world_size == 1:
            # Ray Serve LLM makes every rank on a GPU an actor: each step then crosses to another process and back.
            # ``vllm serve`` keeps a single rank in the engine core, which inherits this process's environment.
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus_of(placement_group))
            parallel.distributed_executor_backend = "uni"
            placement_group = None
        return super()._start_async_llm_engine(engine_args, engine_config, placement_group)


def gpus_of(placement_group: PlacementGroup) -> list[str]:
    """Return the ids, as CUDA_VISIBLE_DEVICES takes them, of the first GPU that this placement group holds.

    The group's owner keeps the GPU although no task of it runs there.
    """
    strategy = PlacementGroupSchedulingStrategy(placement_group=placement_group, placement_group_bundle_index=0)
    asked = ray.remote(_own_gpus).options(num_cpus=0, num_gpus=0.001, scheduling_strategy=strategy)
    ids: list[str] = ray.get(asked.remote())
    return ids


def _own_gpus() -> list[str]:
    return [str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids()["GPU"]]
