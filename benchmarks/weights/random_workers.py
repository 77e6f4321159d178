"""vLLM workers whose load format ``dummy`` draws weights that leave every layer something to compute (random_weights.py).

    worker_cls: benchmarks.weights.random_workers.RandomNestedFPWorker    # engine.extra of a deployment, with nested weights
    --worker-cls benchmarks.weights.random_workers.RandomPlainWorker      # vllm serve

Engine and HTTP benchmarks on GPUs, and experiments with a published shape, run them.
"""

from typing import Any

from benchmarks.weights import random_weights
from nestedfp.vllm_plugin.ranks.plain_worker import PlainWorker
from nestedfp.vllm_plugin.ranks.worker import NestedFPWorker


class RandomWeights:
    """Mixin before a vLLM worker."""

    def init_device(self, *args: Any, **kwargs: Any) -> Any:
        random_weights.install()
        return super().init_device(*args, **kwargs)  # type: ignore[misc]


class RandomNestedFPWorker(RandomWeights, NestedFPWorker):  # type: ignore[misc]
    """For an engine with nested weights."""


class RandomPlainWorker(RandomWeights, PlainWorker):  # type: ignore[misc]
    """For plain vLLM."""
