"""vLLM's log of a dead engine: one line for each stream that was in it."""

import io
import logging

import pytest

pytest.importorskip("vllm")

from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from deploy import short_logs
from deploy.health import EngineHung


@pytest.fixture
def written():
    """What vLLM's log has written, by the handler that vLLM has, as a replica sets it up."""
    logger = logging.getLogger("vllm")
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    before, logger.handlers = logger.handlers, [handler]
    short_logs.install()
    short_logs.install()
    assert len(handler.filters) == 1
    yield text.getvalue
    logger.handlers = before


def fail(error, cause=None):
    """Log an error as vLLM's generators do."""
    try:
        raise error from cause
    except Exception:
        logging.getLogger("vllm.entrypoints.serving").exception("Error in %s generator.", "stream")


@pytest.mark.parametrize(
    ("error", "cause"),
    [(EngineDeadError(), None), (EngineHung("it hangs"), None), (EngineGenerateError(), EngineHung("it hangs"))],
)
def test_a_dead_or_hung_engine_is_one_line(written, error, cause):
    fail(error, cause)
    assert written() == f"Error in stream generator. ({type(error).__name__})\n"


def test_what_is_a_fault_in_code_keeps_its_traceback(written):
    fail(EngineGenerateError(), KeyError("x"))
    assert "Traceback" in written()
    assert "KeyError" in written()


def test_a_record_without_an_error_stays_as_it_is(written):
    logging.getLogger("vllm.engine").error("it %s", "died", exc_info=True)
    logging.getLogger("vllm.engine").error("it %d %%", 3)
    assert written().splitlines()[0] == "it died"
    assert written().endswith("it 3 %\n")
