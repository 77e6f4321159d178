"""What a client hears of a request that is none: the branch that it meant, its own names, and no heading that is untrue."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_parts import SamplingParams  # noqa: F401  first: it silences third-party warnings

from deploy.front.checks.requests import parse
from deploy.front.replies import Refused

vllm = pytest.importorskip("vllm")

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # noqa: E402

JSON = {b"content-type": b"application/json"}


def said(model, body):
    """The message and the field of a refusal."""
    with pytest.raises(Refused) as caught:
        parse(json.dumps(body).encode(), JSON, model, lambda request: None)
    assert caught.value.status == 400
    return str(caught.value), caught.value.param


@pytest.mark.parametrize(
    ("model", "body", "message", "param"),
    [
        (CompletionRequest, {"stop": ["a"] * 5}, "List should have at most 4 items, not 5", "stop"),
        (CompletionRequest, {"stop": ["a", 1]}, "Input should be a valid string", "stop.1"),
        (CompletionRequest, {"prompt": [1, "a"]}, "Input should be a valid integer", "prompt.1"),
        (CompletionRequest, {"prompt": [3, -1]}, "Input should be greater than or equal to 0", "prompt.1"),
        (
            CompletionRequest,
            {"response_format": "no", "structured_outputs": {"disable_additional_properties": None}},
            "Input should be a valid boolean",
            "structured_outputs.disable_additional_properties",
        ),
        (CompletionRequest, {"stop": 5, "prompt": [1, "a"]}, "Input should be a valid integer", "prompt.1"),
        (CompletionRequest, {"response_format": {"type": "no"}}, "'text', 'json_object' or", "response_format.type"),
        (ChatCompletionRequest, {"content": None}, "a valid", "messages.0.content"),
    ],
)
def test_of_what_a_field_may_be_the_client_hears_of_that_which_it_meant(model, body, message, param):
    body = (
        {"prompt": "x", **body}
        if model is CompletionRequest
        else {"messages": [{"role": "user", "content": "x", **body}]}
    )
    told, field = said(model, body)
    assert message in told
    assert (told.endswith(f", at {param}"), field) == (True, param)
    assert not set(told) & set("[("), "no name of pydantic's"
    assert "Param" not in told


def test_of_more_faults_than_are_looked_at_only_their_number_is_said():
    told, param = said(ChatCompletionRequest, {"messages": [{"role": 1}] * 3000})
    assert "got one with 45000 faults" in told
    assert param is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "json", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)


FIELDS = ("prompt", "messages", "input", "stop", "response_format", "structured_outputs", "tools", "tool_choice", "n")


def read(model, body):
    """Why the request is refused; None: it is one."""
    try:
        parse(json.dumps(body).encode(), JSON, model, lambda request: None)
    except Refused as refusal:
        return refusal
    return None


@pytest.mark.parametrize("model", [CompletionRequest, ChatCompletionRequest])
@settings(max_examples=50, deadline=None)
@given(body=st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=4))
def test_whatever_stands_in_the_fields_is_a_request_or_refused_with_a_sentence(model, body):
    """Several wrong fields at once, of which some may be one of several things."""
    refusal = read(model, body)
    assert refusal is None or (refusal.status, bool(str(refusal))) == (400, True)
