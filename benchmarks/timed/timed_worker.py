"""vLLM workers whose step is a sleep: an engine of known speed that leaves the processor to what stands in front of it.

    worker_cls: benchmarks.timed.timed_worker.TimedNestedFPWorker        # engine.extra of a deployment, with nested weights
    --worker-cls benchmarks.timed.timed_worker.TimedCPUWorker            # vllm serve

``TIMED_WORKER_STEP_MS`` in the environment says how long a step takes. The engine loads its model as usual, so the whole
path is the real one; only the forward pass is replaced. For measurements of the HTTP path on machines without a GPU.
"""

import functools
import os
import time
from typing import Any

from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

from benchmarks.timed.timed_steps import Positions, StepClock
from nestedfp.vllm_plugin.ranks.worker import NestedFPWorker

STEP_ENV = "TIMED_WORKER_STEP_MS"
# Answers walk through these ids, which are pieces of text in the shipped tokenizer's vocabulary of 4096.
TOKEN_IDS = range(300, 900)


class TimedSteps:
    """Mixin before a vLLM worker: from the end of the warm-up on, a step sleeps and answers one token per request."""

    _pace: StepClock | None = None

    def compile_or_warm_up_model(self) -> Any:
        result = super().compile_or_warm_up_model()  # type: ignore[misc]
        self._pace = StepClock(float(os.environ[STEP_ENV]) / 1e3)
        self._positions = Positions()
        self._steps = 0
        return result

    def execute_model(self, scheduler_output: Any) -> Any:
        if self._pace is None:
            return super().execute_model(scheduler_output)  # type: ignore[misc]
        scheduled = list(scheduler_output.num_scheduled_tokens)
        sampling = set(self._positions.sampling(scheduler_output))
        if not scheduled:
            return EMPTY_MODEL_RUNNER_OUTPUT
        continues = bool(scheduler_output.scheduled_cached_reqs.req_ids)
        time.sleep(self._pace.wait_s(time.monotonic(), continues))
        self._steps += 1
        token = TOKEN_IDS[self._steps % len(TOKEN_IDS)]
        return ModelRunnerOutput(
            req_ids=scheduled,
            req_id_to_index={request: index for index, request in enumerate(scheduled)},
            sampled_token_ids=[[token] if request in sampling else [] for request in scheduled],
        )


class TimedCPUWorker(TimedSteps, CPUWorker):  # type: ignore[misc]
    """For plain vLLM."""


class TimedNestedFPWorker(TimedSteps, NestedFPWorker):  # type: ignore[misc]
    """For an engine with nested weights, whose scheduler, accounts and pins stay as they are."""


class InCoreExecutor(UniProcExecutor):
    """vLLM's executor of one rank in the engine core's process, as a GPU has it.

    On a CPU vLLM would take its multi-process executor, whose ends poll shared memory in a busy loop while a step lasts.
    """


def keep_in_core() -> None:
    """Give engines with a timed worker ``InCoreExecutor``, also where a replica has set another."""
    original = Executor.get_class

    @functools.wraps(original)
    def get_class(vllm_config: Any) -> Any:
        name = vllm_config.parallel_config.worker_cls
        return InCoreExecutor if isinstance(name, str) and name.startswith(f"{__name__}.") else original(vllm_config)

    Executor.get_class = staticmethod(get_class)  # type: ignore[method-assign]


keep_in_core()
