"""One line instead of a traceback where vLLM logs what is no fault in its code: an engine that died, or that hangs.

vLLM logs the same two stacks for each stream that was in the engine; what happened stands in the first line, and why in the
engine's own log.
"""

import logging


class OneLine(logging.Filter):
    """Takes the traceback off records of these errors, and says the error instead."""

    def __init__(self, *errors: type[BaseException]) -> None:
        super().__init__()
        self._errors = errors

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None and (isinstance(error, self._errors) or isinstance(error.__cause__, self._errors)):
            text = f"{record.getMessage()} ({type(error).__name__})"
            vars(record).update(msg=text, args=None, exc_info=None, exc_text=None)
        return True


def install() -> None:
    """Have vLLM's log in this process say dead and hung engines in one line each. Idempotent."""
    from vllm.v1.engine.exceptions import EngineDeadError

    from deploy.health import EngineHung

    for handler in logging.getLogger("vllm").handlers:
        if not any(isinstance(each, OneLine) for each in handler.filters):
            handler.addFilter(OneLine(EngineDeadError, EngineHung))
