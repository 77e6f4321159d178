"""vLLM's own worker for a CPU, for the service's plain engines: a request with a seed must not end the engine (cpu_seed.py)."""

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from nestedfp.vllm_plugin.ranks import cpu_seed


class PlainCPUWorker(CPUWorker):
    """CPUWorker whose seeded requests may have chunked prompts."""

    def init_device(self, *args: Any, **kwargs: Any) -> None:
        cpu_seed.install()
        super().init_device(*args, **kwargs)
