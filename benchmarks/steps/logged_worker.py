"""A vLLM worker with nested weights that keeps a log of every step, as ``python -m simulator fit --steps-csv`` takes it.

    worker_cls: benchmarks.steps.logged_worker.LoggedNestedFPWorker    # engine.extra of a deployment

``STEP_LOG_FOLDER`` in the environment names a folder; the first rank of each engine writes ``steps-PID.csv`` there, from the end
of its warm-up on. Load format ``dummy`` draws the weights of random_weights.py. The model's name is that of its folder. A request
counts as a decode if it has one token in the step. A step's time is the GPU's, from the end of the step before where nothing but
sampling lies in between (SAMPLING_MS); on a CPU the worker's. A line costs some 17 us, and on a GPU two events come on top, so that
load tests are best judged without a log.
"""

import os
import time
from collections import deque
from pathlib import Path
from typing import IO, Any

import torch
from vllm.platforms import current_platform

from benchmarks.steps import FOLDER_ENV
from benchmarks.weights.random_workers import RandomNestedFPWorker
from simulator.fit.observations import STEP_COLUMNS

SAMPLING_MS = 1.0


def recorded() -> torch.cuda.Event:
    """Return an event at this place of the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class LoggedNestedFPWorker(RandomNestedFPWorker):
    """Logs a line a step as it ends: an engine may be killed at any time."""

    _log: IO[str] | None = None

    def compile_or_warm_up_model(self) -> Any:
        result = super().compile_or_warm_up_model()
        if self.rank > 0:  # it runs the same steps as the first
            return result
        folder = Path(os.environ[FOLDER_ENV])
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / f"steps-{os.getpid()}.csv").open("x", buffering=1)
        self._log.write(",".join(STEP_COLUMNS) + "\n")
        self._waiting: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._last_end: torch.cuda.Event | None = None
        return result

    def execute_model(self, scheduler_output: Any) -> Any:
        if self._log is None or not scheduler_output.total_num_scheduled_tokens:
            return super().execute_model(scheduler_output)
        began_s = time.monotonic()
        begin = None if current_platform.is_cpu() else recorded()
        result = super().execute_model(scheduler_output)
        size = self._size_of(scheduler_output)
        if begin is None:
            self._log.write(f"{size},{1e3 * (time.monotonic() - began_s):.3f}\n")
        else:
            self._waiting.append((size, begin, recorded()))
            self._write_done(self._log)
        return result

    def shutdown(self) -> None:
        if self._log is not None:
            log, self._log = self._log, None
            log.close()
        super().shutdown()

    def _size_of(self, scheduler_output: Any) -> str:
        tokens = scheduler_output.num_scheduled_tokens.values()
        decodes = sum(count == 1 for count in tokens)
        kv_tokens = sum(request.num_computed_tokens for request in scheduler_output.scheduled_new_reqs)
        kv_tokens += sum(scheduler_output.scheduled_cached_reqs.num_computed_tokens)  # entries of earlier steps
        model = Path(self.vllm_config.model_config.model).name
        mode = scheduler_output.nestedfp_mode.value
        return f"{model},nestedfp_{mode},{sum(tokens) - decodes},{decodes},{kv_tokens}"

    def _write_done(self, log: IO[str]) -> None:
        """Write the steps that the GPU has done, but the first; the last few of an engine's life are not written."""
        while self._waiting and self._waiting[0][2].query():
            size, begin, end = self._waiting.popleft()
            if self._last_end is not None:
                idle_ms = self._last_end.elapsed_time(begin)
                log.write(f"{size},{begin.elapsed_time(end) + min(SAMPLING_MS, idle_ms):.3f}\n")
            self._last_end = end
