"""The replica's engine: Ray Serve LLM's vLLM engine, and the attributes of it that the replica needs.

The private attributes of Ray's class are touched in this file only.
"""

from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine


class NestedFPEngine(VLLMEngine):  # type: ignore[misc]
    """VLLMEngine with a way to the engine core."""

    @property
    def client(self) -> Any:
        """vLLM's ``AsyncLLM``."""
        return self._engine_client

    async def call(self, utility: str, *args: Any) -> Any:
        """Call a utility of the engine core; answered between two steps."""
        return await self._engine_client.engine_core.call_utility_async(utility, *args)
