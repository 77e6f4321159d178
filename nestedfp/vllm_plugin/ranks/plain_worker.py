"""vLLM's own worker for this platform, for the service's plain engines: a damaged checkpoint is refused as by nested ones, and on a
CPU a request with a seed does not end the engine (cpu_seed.py)."""

from contextlib import nullcontext
from typing import Any

from vllm.platforms import current_platform

from nestedfp.vllm_plugin import failure
from nestedfp.vllm_plugin.loading import load_check
from nestedfp.vllm_plugin.ranks import cpu_seed

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as BaseWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as BaseWorker  # type: ignore[assignment]


class PlainWorker(BaseWorker):  # type: ignore[misc,valid-type]
    """vLLM's worker, whose checkpoint is checked and whose seeded requests may have chunked prompts."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        with cpu_seed.kept(self.model_runner) if current_platform.is_cpu() else nullcontext():
            return super().sample_tokens(grammar_output)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        with failure.reported(), load_check.checked():
            super().load_model(*args, **kwargs)
