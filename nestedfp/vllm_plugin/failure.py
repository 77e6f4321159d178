"""Carries the cause of a failed start from the worker process to whoever started the engine.

vLLM's front end only learns that the engine core died ("See root cause above"). The worker writes the cause into the
file that ``NESTEDFP_FAILURE_FILE`` names, and ``explained`` puts it into the exception that the front end raises.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FAILURE_FILE_ENV = "NESTEDFP_FAILURE_FILE"


@contextmanager
def reported() -> Iterator[None]:
    """In the worker: leave the message of an exception for the front end, and let it pass."""
    try:
        yield
    except Exception as error:
        if path := os.environ.get(FAILURE_FILE_ENV):
            Path(path).write_text(f"{type(error).__name__}: {error}")
        raise


@contextmanager
def explained() -> Iterator[None]:
    """In the front end, around the engine's start: raise RuntimeError with the worker's message when it left one."""
    handle, path = tempfile.mkstemp(prefix="nestedfp-failure-")
    os.close(handle)
    before = os.environ.get(FAILURE_FILE_ENV)
    os.environ[FAILURE_FILE_ENV] = path
    try:
        yield
    except Exception as error:
        cause = Path(path).read_text()
        raise RuntimeError(
            f"the engine did not start: {cause}" if cause else f"the engine did not start: {error}"
        ) from error
    finally:
        Path(path).unlink(missing_ok=True)
        if before is None:
            os.environ.pop(FAILURE_FILE_ENV, None)
        else:
            os.environ[FAILURE_FILE_ENV] = before
