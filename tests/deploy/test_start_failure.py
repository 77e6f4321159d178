"""Out of what Ray Serve says of a deployment that does not start, the sentence that matters."""

import pytest

from deploy.startup.start_failure import cause, heart

TRACEBACK = """The deployment failed to start 2 times in a row. This may be due to a problem with its constructor or initial \
health check failing. See controller logs for details. Error:
\x1b[36mray::ServeReplica:nestedfp:NestedFPServer:m.initialize_and_get_metadata()\x1b[39m (pid=1, ip=127.0.0.1)
  File "/x/core.py", line 100, in start
RuntimeError: Engine core initialization failed. See root cause above.

The above exception was the direct cause of the following exception:

  File "/x/replica.py", line 1, in initialize_and_get_metadata
    raise RuntimeError(traceback.format_exc()) from None
RuntimeError: Traceback (most recent call last):
  File "/y/failure.py", line 38, in explained
{last}
"""


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        (
            "RuntimeError: the engine did not start: CheckpointError: layers.3: 1 of 9 weights are NaN or infinite",
            "CheckpointError: layers.3: 1 of 9 weights are NaN or infinite",
        ),
        (
            "RuntimeError: vLLM refuses its configuration: 1 validation error for StructuredOutputsConfig\n"
            "  Value error, disable_any_whitespace is only for xgrammar [type=value_error, input_value=1]",
            "disable_any_whitespace is only for xgrammar",
        ),
        ("ValueError: no such thing", "ValueError: no such thing"),
        ("nestedfp.checkpoint.CheckpointError: a shard is missing", "CheckpointError: a shard is missing"),
    ],
)
def test_the_innermost_cause_is_named(last, sentence):
    assert heart(TRACEBACK.format(last=last)) == sentence


def test_a_message_without_a_cause_says_nothing():
    assert heart("Waiting for 1 replica to be started.") is None


@pytest.mark.filterwarnings("ignore")  # Ray's own, while it is imported
def test_where_ray_does_not_run_the_exception_itself_is_told_and_serve_is_not_asked(monkeypatch):
    import ray
    from ray import serve

    asked = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(serve, "status", lambda: asked.append("serve.status"))  # the real one starts a cluster
    assert cause(ValueError("the port is taken")) == "the port is taken"
    assert not asked
