"""Takes directives in the thread that reads the engine core's sockets, and not between two steps.

A step of a large model takes tens of milliseconds, and vLLM's core answers calls between two of them. A directive needs no such
place: the scheduler reads the one in force when it schedules a step, whoever has put it there. So it is in force, and
acknowledged, before the step that runs has ended; as ever, it holds for steps that are scheduled from then on.
"""

import functools
from typing import Any

from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineCoreProc

SET_DIRECTIVE = "nestedfp_set_directive"


def install() -> None:
    """Wrap ``EngineCoreProc.process_input_sockets``, which vLLM runs in a thread once the scheduler is there. Idempotent."""
    original = EngineCoreProc.process_input_sockets
    if getattr(original, "_nestedfp", False):
        return

    @functools.wraps(original)
    def process_input_sockets(self: Any, *args: Any, **kwargs: Any) -> Any:
        put = self.input_queue.put_nowait

        def put_nowait(item: Any) -> None:
            request_type, request = item
            # The first directive also asks the workers, which only the core's own thread may.
            early = request_type is EngineCoreRequestType.UTILITY and request[2] == SET_DIRECTIVE
            if early and getattr(self, "nestedfp_asked_workers", False):
                self._handle_client_request(request_type, request)
            else:
                put(item)

        self.input_queue.put_nowait = put_nowait
        return original(self, *args, **kwargs)

    process_input_sockets._nestedfp = True  # type: ignore[attr-defined]
    EngineCoreProc.process_input_sockets = process_input_sockets
