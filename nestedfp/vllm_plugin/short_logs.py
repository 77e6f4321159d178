"""One line instead of a traceback where vLLM logs what a request, or an engine's end, made of its code, or ends of bad options.

A bad request is no fault in the code, and an engine that dies ends every stream that was in it: vLLM logs a stack for each. The
error itself stands in the line. With ``VLLM_LOGGING_LEVEL=DEBUG`` the stacks stay.

Standard library only: it is installed in every process of every engine.
"""

import contextlib
import logging
import sys
from typing import Any

# By name: the front end's alone, and the plugin runs everywhere.
ENGINE_ENDS = ("EngineDeadError", "EngineHung", "DrainOver")
OF_REQUESTS = (  # loggers that log a stack for nothing but a request's own failure
    "vllm.entrypoints.openai.completion",
    "vllm.entrypoints.openai.chat_completion",
    "vllm.entrypoints.generate",
    "vllm.renderers",
    "vllm.v1.structured_output",
)
LONGEST = 300  # characters of an error


class OneLine(logging.Filter):
    """Takes the traceback off such records, and says the error instead."""

    def filter(self, record: logging.LogRecord) -> bool:
        # What a filter raises would end the call that logs, unlike what a handler does.
        with contextlib.suppress(Exception):
            self._shorten(record)
        return True

    def _shorten(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is None or logging.getLogger("vllm").isEnabledFor(logging.DEBUG):
            return
        ends = any(type(each).__name__ in ENGINE_ENDS for each in (error, error.__cause__))
        if ends or record.name.startswith(OF_REQUESTS):
            said = (str(error).strip().splitlines() or [""])[0][:LONGEST]
            text = f"{record.getMessage()} ({type(error).__name__}{': ' + said if said else ''})"
            vars(record).update(msg=text, args=None, exc_info=None, exc_text=None)


def install() -> None:
    """Have vLLM's log in this process say them in one line each. Idempotent."""
    for handler in logging.getLogger("vllm").handlers:
        if not any(isinstance(each, OneLine) for each in handler.filters):
            handler.addFilter(OneLine())


def end_in_one_line(error: Exception) -> None:
    """Have this process, where nobody catches the error, end with its message alone and exit status 2."""
    before = sys.excepthook

    def hook(kind: Any, value: BaseException, trace: Any) -> None:
        if value is not error or logging.getLogger("vllm").isEnabledFor(logging.DEBUG):
            before(kind, value, trace)
            return
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2)

    sys.excepthook = hook
