"""vLLM's own worker for this platform, for the service's plain engines, with what it lacks."""

from typing import Any

from vllm.platforms import current_platform

from nestedfp.vllm_plugin import failure
from nestedfp.vllm_plugin.loading import load_check

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as BaseWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as BaseWorker  # type: ignore[assignment]


class PlainWorker(BaseWorker):  # type: ignore[misc,valid-type]
    """vLLM's worker, which refuses a damaged checkpoint, and on a CPU takes seeded requests with chunked prompts."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample as vLLM does, on a CPU without the generators of requests whose sample of this step is thrown away.

        vLLM samples in every step of a request, also in those that end inside its prompt, and takes back what they drew from the
        request's generator by ``set_offset``, which a CPU's generator does not have: one such request ended the engine. So the
        tokens are those of the same request with its prompt in one piece.
        """
        if not current_platform.is_cpu():
            return super().sample_tokens(grammar_output)
        generators, mask = self.model_runner.input_batch.generators, self.model_runner.discard_request_mask.np
        hidden = {index: generators.pop(index) for index in list(generators) if mask[index]}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(hidden)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        with failure.reported(), load_check.checked():
            super().load_model(*args, **kwargs)
