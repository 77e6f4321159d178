"""vLLM's log of bad requests and of an engine's end: one line each, in which the error stands."""

import io
import logging
import subprocess
import sys

import pytest

pytest.importorskip("vllm")

from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from deploy.replica.drain import DrainOver
from deploy.replica.health_routes import EngineHung
from nestedfp.vllm_plugin import register, short_logs

ENGINE = "vllm.v1.engine.async_llm"
SERVING = "vllm.entrypoints.openai.completion.serving"


@pytest.fixture
def written():
    """What vLLM's log has written through a handler as vLLM makes it, after the plugin was registered."""
    logger = logging.getLogger("vllm")
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    before, logger.handlers = logger.handlers, [handler]
    level = logger.level
    register()
    short_logs.install()
    assert len(handler.filters) == 1
    yield text.getvalue
    logger.handlers = before
    logger.setLevel(level)


def fail(error, cause=None, name=ENGINE):
    """Log an error as vLLM does."""
    try:
        raise error from cause
    except Exception:
        logging.getLogger(name).exception("Error in %s generator.", "stream")


@pytest.mark.parametrize(
    ("error", "cause"),
    [(EngineDeadError(), None), (EngineGenerateError(), EngineHung("")), (EngineGenerateError(), DrainOver(""))],
)
def test_an_engine_that_dies_hangs_or_is_given_up_is_one_line(written, error, cause):
    fail(error, cause)
    assert written().count("\n") == 1
    assert written().startswith(f"Error in stream generator. ({type(error).__name__}")


@pytest.mark.parametrize("name", [SERVING, "vllm.renderers.hf", "vllm.v1.structured_output"])
def test_a_bad_request_is_one_line_that_says_what_was_bad(written, name):
    fail(VLLMValidationError("Token id 9 is\nout of vocabulary"), name=name)
    assert written() == "Error in stream generator. (VLLMValidationError: Token id 9 is)\n"


def test_what_is_a_fault_in_code_keeps_its_traceback(written):
    fail(EngineGenerateError(), KeyError("x"))
    assert "Traceback" in written()
    assert "KeyError" in written()


def test_who_debugs_sees_the_stacks(written):
    logging.getLogger("vllm").setLevel(logging.DEBUG)
    fail(EngineDeadError())
    assert "Traceback" in written()


def test_a_record_without_an_error_stays_as_it_is(written):
    logging.getLogger(SERVING).error("it %s", "died", exc_info=True)
    logging.getLogger(SERVING).error("it %d %%", 3)
    assert written().splitlines()[0] == "it died"
    assert written().endswith("it 3 %\n")


@pytest.mark.parametrize(("raised", "said"), [("error", "error: set it so\n"), ("ValueError('another')", "Traceback")])
def test_a_refusal_that_nobody_catches_is_one_line_and_status_2(raised, said):
    script = (
        "from nestedfp.vllm_plugin.short_logs import end_in_one_line",
        "error = ValueError('set it so')",
        "end_in_one_line(error)",
        f"raise {raised}",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(script)], capture_output=True, text=True, check=False)
    assert done.stderr.startswith(said)
    assert done.returncode == (2 if raised == "error" else 1)
