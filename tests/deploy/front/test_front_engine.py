"""What vLLM's own code, over an engine with the shipped model, answers through the front: as it was asked, or with an error."""

import json

import front_engine
import pytest
from front_engine import LENGTH

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # in vLLM's own code
]


@pytest.fixture(scope="module")
def engine():
    with front_engine.running(enable_auto_tool_choice=True, tool_call_parser="hermes") as found:
        yield found


# -- log-probabilities --------------------------------------------------------------------------------------------------


def test_a_chat_that_asks_for_log_probabilities_alone_gets_them(engine):
    choice = engine.chat(logprobs=True, top_logprobs=None, max_tokens=3).json["choices"][0]
    assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [0, 0, 0]


# -- errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [LENGTH, LENGTH + 1, 20 * LENGTH])
@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=str)
def test_a_chat_that_leaves_no_room_for_an_answer_is_told_the_length_of_the_context(engine, tokens, fields):
    answer = engine.chat("a" + " a" * (tokens - 2), **fields)
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert f"maximum context length is {LENGTH} tokens" in answer.error["message"]


def test_a_completion_whose_prompt_and_answer_are_too_long_is_told_so_at_the_prompt(engine):
    answer = engine.complete([5] * LENGTH, max_tokens=16)
    assert (answer.status, answer.error["param"]) == (400, "prompt")
    assert f"maximum context length is {LENGTH} tokens" in answer.error["message"]


FAULTS = {
    "n": [{"n": 0}, {"n": -1}],
    "min_p": [{"min_p": 2}],
    "max_completion_tokens": [{"max_completion_tokens": 0}, {"max_completion_tokens": 10_000}],
    "max_tokens": [{"max_tokens": 0}],
    "logprobs": [{"logprobs": True, "top_logprobs": 21}, {"use_beam_search": True, "n": 20}],
    "top_k": [{"top_k": -5}],
    "repetition_penalty": [{"repetition_penalty": 0}],
    "presence_penalty": [{"presence_penalty": 5}],
    "min_tokens": [{"min_tokens": -1}, {"min_tokens": 50, "max_tokens": 2}],
    "bad_words": [{"bad_words": [""]}],
    "stop_token_ids": [{"stop_token_ids": [99_999]}],
    "thinking_token_budget": [{"thinking_token_budget": 5}],
    "chat_template": [{"chat_template": "x"}],
    "chat_template_kwargs.chat_template": [{"chat_template_kwargs": {"chat_template": "x"}}],
    "continue_final_message": [{"continue_final_message": True}],
    "response_format": [{"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}],
    "structured_outputs": [
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "grammar": "b"}},
        {"structured_outputs": {"regex": "("}},
    ],
    "repetition_detection.max_pattern_size": [{"repetition_detection": {"max_pattern_size": -1}}],
    "tool_choice": [{"tool_choice": "required"}],
    "tools.0.function": [{"tools": [{"type": "function"}]}],
    "messages": [{"messages": []}],
    "type": [{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "foo"}]}]}],
}
INSIDES = [
    "\n",
    "pydantic",
    "http",
    "_backend",
    " --",
    "(parameter=",
    "VLLM",
    "input_value",
    "validation error",
    "=max_",
]


@pytest.mark.parametrize(("param", "body"), [(param, body) for param, each in FAULTS.items() for body in each], ids=str)
def test_an_error_is_one_line_at_the_path_of_the_clients_own_field(engine, param, body):
    answer = engine.chat(**body)
    assert answer.status == 400
    assert answer.error["param"] in (param, None), json.dumps(answer.error)
    assert len(answer.error["message"]) < 600
    assert not [word for word in INSIDES if word in answer.error["message"]]


# -- responses ------------------------------------------------------------------------------------------------------------


def respond(engine, **fields):
    return engine.ask("responses", {"model": "m", "input": "Once upon a time", "max_output_tokens": 5, **fields})


def computed(usage):
    counts = usage["precision_tokens"]
    return counts["prompt"]["fp16"] + counts["prompt"]["cached"]["fp16"], counts["completion"]["fp16"]


def test_a_response_says_its_precision_in_its_usage(engine):
    answer = respond(engine, temperature=0).json
    assert (answer["object"], answer["status"]) == ("response", "incomplete")
    assert answer["output"][0]["content"][0]["text"]
    assert computed(answer["usage"]) == (answer["usage"]["input_tokens"], 5)


def test_a_streamed_response_says_it_in_its_last_event(engine):
    answer = respond(engine, stream=True)
    kinds = [event["type"] for event in answer.events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    usage = answer.events[-1]["response"]["usage"]
    assert usage["precision"] == "exact"
    assert computed(usage) == (usage["input_tokens"], 5)
    text = "".join(event["delta"] for event in answer.events if event["type"] == "response.output_text.delta")
    assert text == answer.events[-1]["response"]["output"][0]["content"][0]["text"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("pin", [{"vllm_xargs": {"precision": "fp8"}}, {"vllm_xargs": {"precision": "fp16"}}], ids=str)
def test_a_response_can_be_pinned(engine, stream, pin):
    answer = respond(engine, stream=stream, **pin)
    right = pin["vllm_xargs"]["precision"] == "fp16"
    assert answer.status == (200 if right else 400)
    assert not right or answer.headers["x-nestedfp-precision"] == "exact"
    assert right or answer.error["param"] == "vllm_xargs.precision"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "a" + " a" * (LENGTH - 2), "max_output_tokens": None}, "input"),
        ({"input": "a" + " a" * LENGTH}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search_preview"}]}, "tools.0.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"stop": [""]}, "stop"),
    ],
)
def test_a_wrong_response_gets_one_line_at_the_clients_field_before_any_event(engine, fields, param, stream):
    answer = respond(engine, stream=stream, **fields)
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param, answer.error
    assert not [word for word in INSIDES if word in answer.error["message"]]
    if param == "input":
        assert f"maximum context length is {LENGTH} tokens" in answer.error["message"]


def test_what_the_engine_refuses_leaves_no_open_stream_and_no_request(engine):
    respond(engine, stream=True, vllm_xargs={"queue_deadline_s": 1e-9})
    assert engine.meter.stats(0.0).open_streams == 0
    assert not engine.client.output_processor.request_states


# -- the precision of a whole answer, and who has left ---------------------------------------------------------------------


def classes(answer):
    """Every class that an answer names, in the order of its chunks."""
    found = [answer.json] if answer.headers["content-type"] == "application/json" else answer.events
    return [each["usage"]["precision"] for each in found if "precision" in (each.get("usage") or {})]


STREAMS = [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}]


@pytest.mark.parametrize("fields", STREAMS, ids=str)
@pytest.mark.parametrize("many", [{}, {"n": 3, "temperature": 1}], ids=str)
def test_the_usage_says_whether_the_whole_answer_is_exact(engine, fields, many):
    for mode, told in (("fp16", "exact"), ("fp8", "fast")):
        engine.direct(mode)
        for ask in (engine.complete, engine.chat):
            prompt = f"Once upon a time there was a {mode} dragon"
            assert set(classes(ask(prompt, max_tokens=4, **fields, **many))) == {told}
    engine.direct("fp16")
