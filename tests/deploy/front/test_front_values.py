"""A body of very many values is refused before pydantic looks at it; every other goes through."""

import json
import time

import pytest
from front_calls import GOOD, ask, error_of, front

from deploy.front.checks import requests
from deploy.front.checks.requests import MOST_IDS, MOST_VALUES, check_values
from deploy.front.replies import Refused

MANY = MOST_VALUES + 1
LONG = 1_000_000
LONG_S = 10.0  # pydantic alone took 8 to 49 s of bodies like these; this a twentieth of it


def refused(body):
    """Whether it is, and that this is said in no time to speak of."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    began_s = time.process_time()
    found = None
    try:
        check_values(text)
    except Refused as refusal:
        found = refusal
    assert time.process_time() - began_s < LONG_S
    return found is not None


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [1] * MANY},
        {"messages": [{"role": 1}] * MANY},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "[,{"}] * MANY}]},
        {"prompt": [1] * MANY + ["a"]},
        {"prompt": [-1] * MANY},
        {"input": [["a"] * MANY]},
        {f"a{number}": 0 for number in range(MANY)},
        {"vllm_xargs": {"prompt": [1] * MANY}},
        [1] * MANY,
    ],
    ids=lambda body: json.dumps(body)[:30],
)
def test_more_values_than_a_request_has_use_for_are_refused(body):
    assert refused(body)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [1] * MOST_IDS},
        {"prompt": [[1] * (MOST_IDS // 10)] * 10, "stop_token_ids": list(range(MANY))},
        {"messages": [{"role": "user", "content": ', [ { \\ " ] }' * (LONG // 10)}]},
        {"messages": [{"role": "user", "content": "a"}] * (MOST_VALUES // 3 - 1)},
        b'{"prompt": [' + b"1," * MOST_IDS,  # no JSON: whoever reads it says so
        b'{"prompt": ["' + b'\\"[' * LONG,
        b'{"prompt": ["' + b'\\"[' * LONG + b"\\",
        b"",
    ],
    ids=lambda body: str(body)[:30],
)
def test_token_ids_and_texts_may_be_long(body):
    assert not refused(body)


def test_a_client_hears_of_it(monkeypatch):
    monkeypatch.setattr(requests, "MOST_VALUES", 20)
    answer = ask(front(), body={**GOOD, "stop": ["a"] * 20})
    assert answer[0] == 400
    assert error_of(answer).startswith("expected a body of at most 20 values")
