"""How much of the GPU's time passes from one step's end to the next, told with the step's output.

A step ends when its tokens are sampled. The host takes the output later, when it has launched the next step (device_clock.py), so
that its own clock says little of how long a step took. An event a step costs some microseconds.
"""

from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput

SINCE_LAST_S = "nestedfp_since_last_s"  # the output's attribute; None: the first step


class StepEnds:
    """Marks the end of every step on the stream of its work.

    Args:
        new_event: an event that keeps the time.
    """

    def __init__(self, new_event: Callable[[], Any] | None = None) -> None:
        self._new_event = new_event or _timed_event
        self._last: Any = None
        self._marked: Any = None  # of the step whose drafts are being made

    def mark_before_drafts(self) -> None:
        """A step ends here, before its drafts, which the drafter makes while the host gets the tokens."""
        self._marked = self._mark()

    def after(self, output: Any) -> Any:
        """All work of a step is on the current stream; ``output`` is what the runner gave for it.

        Returns:
            The output, which tells the time when it has the tokens. One that is there already stays as it is, and so does None:
            the host waited for it, or it has no tokens, as that of a pipeline's earlier stage.
        """
        if not isinstance(output, AsyncModelRunnerOutput):
            return output
        before, end = self._last, self._marked or self._mark()
        self._last, self._marked = end, None
        return _TimedOutput(output, before, end)

    def _mark(self) -> Any:
        end = self._new_event()
        end.record()
        return end


class _TimedOutput(AsyncModelRunnerOutput):
    """An output that is still on its way."""

    def __init__(self, output: AsyncModelRunnerOutput, before: Any, end: Any) -> None:
        self._output, self._before, self._end = output, before, end

    def get_output(self) -> Any:
        output = self._output.get_output()
        self._end.synchronize()  # the tokens are there; what comes after them in the step is short
        setattr(output, SINCE_LAST_S, None if self._before is None else self._before.elapsed_time(self._end) * 1e-3)
        return output

    def get_kv_connector_output(self) -> Any:
        """From vLLM 0.33 on an output must have it."""
        return self._output.get_kv_connector_output()


def _timed_event() -> Any:
    return torch.cuda.Event(enable_timing=True, blocking=True)
