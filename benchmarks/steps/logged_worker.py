"""vLLM workers that keep a log of every step.

    worker_cls: benchmarks.steps.logged_worker.LoggedNestedFPWorker    # engine.extra of a deployment, with nested weights
    --worker-cls benchmarks.steps.logged_worker.LoggedPlainWorker      # vllm serve

``STEP_LOG_FOLDER`` in the environment names a folder; the first rank of each engine writes a file there (step_log.py), from the
end of its warm-up on. Load format ``dummy`` draws the weights of random_weights.py. A line costs 17 us (200 requests, no GPU),
and on a GPU two events come on top, so that load tests are best judged without a log.
"""

import os
import time
from collections import deque
from dataclasses import replace
from typing import Any

from vllm.platforms import current_platform

from benchmarks.steps.step_log import LoggedStep, StepLog, log_folder
from benchmarks.weights.random_workers import RandomNestedFPWorker, RandomPlainWorker


class GpuSpan:
    """Events around the work that a step puts on the current stream."""

    def __init__(self) -> None:
        import torch

        self._begin, self._end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._begin.record()

    def close(self) -> None:
        """The step's work is on the stream."""
        self._end.record()

    def is_over(self) -> bool:
        """Whether the GPU has done it, without waiting."""
        return bool(self._end.query())

    def ms(self) -> float:
        """How long it took."""
        return float(self._begin.elapsed_time(self._end))

    def idle_before_ms(self, before: "GpuSpan") -> float:
        """From the end of another span to the begin of this."""
        return float(before._end.elapsed_time(self._begin))


class LoggedSteps:
    """Mixin before a vLLM worker."""

    _log: StepLog | None = None

    def init_device(self, *args: Any, **kwargs: Any) -> Any:
        log_folder()  # before minutes of loading
        return super().init_device(*args, **kwargs)  # type: ignore[misc]

    def compile_or_warm_up_model(self) -> Any:
        result = super().compile_or_warm_up_model()  # type: ignore[misc]
        if self.rank > 0:  # type: ignore[attr-defined]  # it runs the same steps as the first
            return result
        self._log = StepLog(log_folder() / f"steps-{os.getpid()}.csv")
        self._has_gpu = not current_platform.is_cpu()
        self._waiting: deque[tuple[LoggedStep, GpuSpan]] = deque()
        self._last_span: GpuSpan | None = None
        return result

    def execute_model(self, scheduler_output: Any) -> Any:
        if self._log is None or not scheduler_output.total_num_scheduled_tokens:
            return super().execute_model(scheduler_output)  # type: ignore[misc]
        began_s = time.monotonic()
        span = GpuSpan() if self._has_gpu else None
        result = super().execute_model(scheduler_output)  # type: ignore[misc]
        tokens = scheduler_output.num_scheduled_tokens.values()
        step = LoggedStep(
            round(began_s, 6),
            self._mode_of(scheduler_output),
            scheduler_output.total_num_scheduled_tokens,
            len(tokens),
            sum(count > 1 for count in tokens),
            kv_tokens(scheduler_output),
        )
        if span is None:
            self._log.write(step)
        else:
            span.close()
            self._waiting.append((step, span))
            self._write_done()
        return result

    def shutdown(self) -> None:
        if self._log is not None:
            log, self._log = self._log, None
            log.close()
        super().shutdown()  # type: ignore[misc]

    def _mode_of(self, scheduler_output: Any) -> str:
        if (mode := getattr(scheduler_output, "nestedfp_mode", None)) is not None:
            return str(mode.value)
        return "fp8" if self.vllm_config.model_config.quantization == "fp8" else "fp16"  # type: ignore[attr-defined]

    def _write_done(self) -> None:
        """Write the steps that the GPU has done; the last few of an engine's life are not written."""
        assert self._log is not None
        while self._waiting and self._waiting[0][1].is_over():
            step, span = self._waiting.popleft()
            before, self._last_span = self._last_span, span
            idle_ms = None if before is None else round(span.idle_before_ms(before), 3)
            self._log.write(replace(step, gpu_ms=round(span.ms(), 3), gpu_idle_before_ms=idle_ms))


def kv_tokens(scheduler_output: Any) -> int:
    """Return how many entries of earlier steps the requests of a step attend to."""
    new = sum(request.num_computed_tokens for request in scheduler_output.scheduled_new_reqs)
    return int(new + sum(scheduler_output.scheduled_cached_reqs.num_computed_tokens))


class LoggedNestedFPWorker(LoggedSteps, RandomNestedFPWorker):  # type: ignore[misc]
    """For an engine with nested weights."""


class LoggedPlainWorker(LoggedSteps, RandomPlainWorker):  # type: ignore[misc]
    """For plain vLLM."""
