"""What ``engine.extra`` hands to vLLM works through the whole service: tool calls, reasoning, a chat template."""

import json

import pytest
from keyed_service import client_of
from live_service import MODEL, children, wait_until
from processes import ROOT
from transformers import AutoTokenizer

pytestmark = pytest.mark.serve

TOOL = {
    "type": "function",
    "function": {
        "name": "door",
        "strict": True,  # without it vLLM 0.32 holds arguments to no schema
        "parameters": {
            "type": "object",
            "properties": {"state": {"enum": ["open", "shut"]}},
            "required": ["state"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "door"}}
THOUGHT = "Here is my thought process: a king. Here is my response: a castle."


@pytest.fixture
def client(service):
    with client_of("user") as client:
        yield client


def chat(client, content="Hello", **more):
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 64, **more}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response


def test_an_adapter_is_a_model_of_the_list_with_exact_and_fast_answers(client):
    assert {card["id"] for card in client.get("/v1/models").json()["data"]} == {MODEL, "storm"}
    assert client.get("/v1/models/storm").json()["parent"] == MODEL
    texts = {}
    for model in (MODEL, "storm"):
        answer = chat(client, model=model, temperature=0, precision="fast", ignore_eos=True)
        assert answer.json()["model"] == model
        texts[model] = str(answer.json()["choices"][0]["message"])
    assert texts[MODEL] != texts["storm"]
    refused = client.post("/v1/load_lora_adapter", json={"lora_name": "b", "lora_path": "/tmp"})
    assert refused.status_code == 404


def counted(usage):
    tokens = usage["precision_tokens"]["completion"]
    return tokens["fp16"] + tokens["fp8"]


@pytest.fixture(scope="module")
def no_blanks():
    """A bias against tokens of blanks alone: JSON allows any number of them between its parts, and this model takes them."""
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / "fairytales-8m")
    return {str(token): -100 for token in range(len(tokenizer)) if not tokenizer.decode([token]).strip()}


def test_each_replica_has_its_process_that_tries_grammars_before_anybody_asks_for_one(service):
    """First in this file: those after it ask."""
    assert wait_until(lambda: len(children(service.process, r"checks\.grammar_process ")) == 2, 60)


def test_a_tool_that_is_named_is_called_with_arguments_of_its_schema(client, no_blanks):
    answer = chat(client, tools=[TOOL], tool_choice=NAMED, logit_bias=no_blanks).json()
    (call,) = answer["choices"][0]["message"].get("tool_calls") or pytest.fail(str(answer))
    assert call["function"]["name"] == "door"
    assert json.loads(call["function"]["arguments"])["state"] in ("open", "shut")
    assert counted(answer["usage"]) == answer["usage"]["completion_tokens"]


def test_a_streamed_tool_call_follows_the_schema_and_discloses(client, no_blanks):
    # vLLM looks for calls in a stream behind the end of the reasoning, which this model never reaches: they come as text.
    text = chat(client, tools=[TOOL], tool_choice=NAMED, logit_bias=no_blanks, stream=True).text
    events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    said = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    call = json.loads(said.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert call["name"] == "door"
    assert call["arguments"]["state"] in ("open", "shut")
    assert counted(events[-1]["usage"]) == events[-1]["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_reasoning_is_told_apart_from_the_answer(client, stream):
    response = chat(client, structured_outputs={"choice": [THOUGHT]}, stream=stream)
    if stream:
        events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        message = {name: "".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning", "content")}
    else:
        message = response.json()["choices"][0]["message"]
    # vLLM's parser of a stream may let the first word of its own mark through.
    assert message["reasoning"].strip().removesuffix("Here").strip() == "a king."
    assert message["content"].strip() == "a castle."


def test_the_chat_template_is_the_one_that_was_given(client):
    assert chat(client, "a king", return_prompt_text=True).json()["prompt_text"].endswith("A KING")
