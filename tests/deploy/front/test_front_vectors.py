"""Requests for vectors: what they ask for, what is refused, how a pin reaches the engine, and the disclosure in the answer."""

import json
import time
from types import SimpleNamespace

import pytest
from front_calls import LIMIT, Client, ask, error_of, vllms_application
from hand_clock import HandClock

# isort: split
from starlette.responses import JSONResponse, StreamingResponse
from vllm import PoolingParams
from vllm.outputs import PoolingOutput, PoolingRequestOutput

from deploy.access.admission import Admission, Asked
from deploy.access.peers import PeerView
from deploy.front.app import Front
from deploy.front.checks.bodies import Bodies
from deploy.front.generate import Generate
from deploy.front.handover import stand_before_engine
from deploy.front.meter import PathMeter
from deploy.front.routes import vectors
from nestedfp.vllm_plugin import frontend
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts

NAMES = ("serving_embedding", "serving_pooling", "serving_classification", "serving_scores")
ROUTES = vectors.routes(SimpleNamespace(**dict.fromkeys(NAMES, "vLLM's")))


def request_of(path, **body):
    route = ROUTES[path]
    from deploy.front.checks.requests import parse

    body = json.dumps({"model": "m", **body}).encode()
    return route, parse(body, {b"content-type": b"application/json"}, route.model, route.check)


@pytest.mark.parametrize(
    ("path", "body", "wanted"),
    [
        ("/v1/embeddings", {"input": "x" * 40}, Asked(1, 1, 10, 0)),
        ("/v1/embeddings", {"input": ["x" * 40, "y" * 80]}, Asked(2, 1, 30, 0)),
        ("/v1/embeddings", {"input": [1, 2, 3]}, Asked(1, 1, 3, 0)),
        ("/v1/embeddings", {"input": [[1, 2, 3], [4, 5]]}, Asked(2, 1, 5, 0)),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "x" * 40}]}, Asked(1, 1, 10, 0)),
        ("/v1/embeddings", {"messages": [[{"role": "user", "content": "x" * 40}]] * 3}, Asked(3, 1, 30, 0)),
        ("/v1/embeddings", {"input": []}, Asked(1, 1, 0, 0)),
        ("/pooling", {"input": "x" * 40}, Asked(1, 1, 10, 0)),
        ("/pooling", {"data": {"of": "a plugin"}, "input": "unread"}, Asked(1, 1, 1, 0)),
        ("/classify", {"input": ["x" * 40] * 2}, Asked(2, 1, 20, 0)),
        ("/score", {"text_1": "x" * 40, "text_2": ["y" * 40] * 3}, Asked(4, 1, 40, 0)),
        ("/score", {"queries": "x" * 40, "documents": "y" * 40}, Asked(2, 1, 20, 0)),
        ("/rerank", {"query": "x" * 40, "documents": ["y" * 40] * 3}, Asked(4, 1, 40, 0)),
        (
            "/rerank",
            {"query": "x" * 40, "documents": [{"content": [{"type": "text", "text": "y" * 40}]}]},
            Asked(2, 1, 20, 0),
        ),
    ],
)
def test_a_request_counts_as_the_texts_that_become_vectors(path, body, wanted):
    route, request = request_of(path, **body)
    assert route.asks(request) == wanted
    assert not route.is_plain(request)


class Vectors:
    """An ``AsyncLLM`` that makes a vector of every prompt; keeps what it was given."""

    errored = False

    def __init__(self):
        self.given = []

    async def encode(self, prompt, pooling_params, request_id, **options):
        self.given.append((prompt, pooling_params.extra_kwargs, options["priority"]))
        import torch

        yield PoolingRequestOutput(
            request_id, PoolingOutput(torch.zeros(2)), prompt["prompt_token_ids"], 0, finished=True
        )


class Serving:
    """Stands where vLLM's serving object stands: gives the engine a prompt for each text and answers with JSON."""

    def __init__(self, client, answer):
        self.engine_client, self.answer = client, answer

    async def __call__(self, request, raw):
        for number, text in enumerate(request.input):
            prompt = {"prompt_token_ids": list(range(len(text)))}
            async for _ in self.engine_client.encode(prompt, PoolingParams(), f"r{number}", priority=7):
                counts = frontend._collecting.get()
                counts[f"r{number}"] = TokenCounts(prompt_fp8=len(text))
        return self.answer


def front(answer, admission=None, meter=None):
    client = Vectors()
    serving = Serving(client, answer)
    stand_before_engine([serving])
    generate = Generate(
        vectors.routes(SimpleNamespace(serving_embedding=serving)),
        client,
        admission or Admission(None, 8),
        meter or PathMeter(),
        PeerView(),
        LIMIT,
    )
    return Front(vllms_application, generate), client


USAGE = {"prompt_tokens": 5, "total_tokens": 5}


def test_an_answer_says_in_which_precision_its_tokens_were_computed_and_else_what_vllm_says():
    data = [{"index": 0, "embedding": [0.25, 1e-7], "text": 'a "usage":{} in a text'}]
    app, client = front(JSONResponse({"object": "list", "data": data, "usage": USAGE}))
    status, headers, body = ask(app, "/v1/embeddings", body={"model": "m", "input": ["ab", "abc"], "inptu": 1})
    assert status == 200
    tokens = {"prompt": {"fp16": 0, "fp8": 5, "cached": {"fp16": 0, "fp8": 0}}, "completion": {"fp16": 0, "fp8": 0}}
    assert json.loads(body) == {
        "object": "list",
        "data": data,
        "usage": {**USAGE, "precision": "fast", "precision_tokens": tokens},
    }
    assert headers["content-type"] == "application/json"
    assert headers["x-nestedfp-ignored"] == "inptu"
    assert [extra for _, extra, _ in client.given] == [None, None]
    assert [priority for _, _, priority in client.given] == [0, 0], "the client's own word is not vLLM's to take"


def test_an_answer_of_bytes_says_it_in_a_header():
    answer = StreamingResponse(
        [b"\x00\x01", b"\x02"], headers={"metadata": "{}"}, media_type="application/octet-stream"
    )
    app, _ = front(answer)
    status, headers, body = ask(app, "/v1/embeddings", body={"model": "m", "input": ["ab"], "encoding_format": "bytes"})
    assert (status, body) == (200, b"\x00\x01\x02")
    assert (headers["content-type"], headers["metadata"]) == ("application/octet-stream", "{}")
    assert json.loads(headers["x-nestedfp-precision-tokens"])["prompt"]["fp8"] == 2


@pytest.mark.parametrize("way", ["header", "body"])
def test_a_pin_reaches_the_engine_with_every_prompt(way):
    app, client = front(JSONResponse({"usage": USAGE}))
    body = {"model": "m", "input": ["ab", "abc"], **({"vllm_xargs": {"precision": "fp16"}} if way == "body" else {})}
    headers = {"X-NestedFP-Precision": "fp16"} if way == "header" else {}
    status, answered, _ = ask(app, "/v1/embeddings", body=body, headers={n.lower(): v for n, v in headers.items()})
    assert (status, "x-nestedfp-ignored" in answered) == (200, False)
    assert [extra for _, extra, _ in client.given] == [{"precision": "exact"}] * 2


@pytest.mark.parametrize(
    ("body", "told", "param"),
    [
        ({}, "Field required", "input"),
        ({"input": {"a": 1}}, "at input", "input"),
        ({"input": ["a"] * 2049}, "input: at most 2048 inputs in one request, got 2049", "input"),
        ({"input": ["a"] * 33, "encoding_format": "bytes"}, "at most 32 inputs", "input with encoding_format 'bytes'"),
        ({"input": "a", "dimensions": 2**31}, "dimensions is expected between", "dimensions"),
        ({"input": "a", "priority": 2**40}, "priority is expected between", "priority"),
        ({"input": "a", "vllm_xargs": 3}, "vllm_xargs: expected an object, got 3", "vllm_xargs"),
        ({"input": "a", "vllm_xargs": {"precision": "fp4"}}, "got 'fp4'", "vllm_xargs.precision"),
        (
            {"input": "a", "vllm_xargs": {"queue_deadline_s": -1}},
            "queue_deadline_s is expected",
            "vllm_xargs.queue_deadline_s",
        ),
    ],
)
def test_a_wrong_request_is_refused_with_its_field(monkeypatch, body, told, param):
    app, client = front(JSONResponse({}))
    app._generate.bodies = Bodies(1 << 20)
    answer = ask(app, "/v1/embeddings", body={"model": "m", **body})
    assert answer[0] == 400
    assert told in error_of(answer)
    assert json.loads(answer[2])["error"]["param"] == param
    assert not client.given


def test_a_place_is_held_until_the_vectors_are_written_and_they_tell_how_fast_places_become_free():
    clock = HandClock()
    admission = Admission(None, 1, clock=clock)
    other = [admission.enter(Asked()) for _ in range(3)]  # there is a queue
    app, _ = front(JSONResponse({"usage": USAGE}), admission)
    for _ in range(20):
        clock.now_s += 0.5
        assert ask(app, "/v1/embeddings", body={"model": "m", "input": ["ab"]})[0] == 200
    assert admission.inside == len(other)
    assert admission.usual_output_tokens == 256, "vectors say nothing about the length of texts"
    assert admission.expected_wait_s() == pytest.approx(3 * 0.5, rel=0.5)


def test_the_latency_of_vectors_counts_as_the_time_to_the_first_token():
    clock = HandClock(time.monotonic())
    meter = PathMeter(clock)
    app, client = front(JSONResponse({"usage": USAGE}), meter=meter)
    encode = client.encode

    async def slow(*args, **options):
        async for output in encode(*args, **options):
            clock.now_s += 60
            yield output

    client.encode = slow
    assert ask(app, "/v1/embeddings", body={"model": "m", "input": ["ab"]})[0] == 200
    ((ttft_s, tpot_s, *_),) = meter.take_finished()
    assert (round(ttft_s), tpot_s) == (60, None)


def test_of_a_request_that_the_engine_refuses_the_client_hears_the_reason():
    class Refusing(Client):
        async def encode(self, *args, **options):
            raise ValueError("too long for this model")
            yield

    app, client = front(JSONResponse({}))
    client.encode = Refusing().encode
    answer = ask(app, "/v1/embeddings", body={"model": "m", "input": ["ab"]})
    assert answer[0] == 400
    assert "too long for this model" in error_of(answer)


def test_a_model_of_vectors_has_its_own_routes_alone():
    app, _ = front(JSONResponse({}))
    assert ask(app, "/v1/completions")[0] == 404
    assert ask(app, "/v1/embeddings", "GET")[0] == 405
