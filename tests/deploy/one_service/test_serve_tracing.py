"""Traces of the whole service in a real collector: Ray Serve's span of a request, and vLLM's below it."""

import secrets

import pytest
from keyed_service import client_of
from live_service import MODEL, complete, wait_until

EXPORTED_S = 60.0  # spans leave every half a second, on cores that others use as well

pytestmark = pytest.mark.serve


@pytest.fixture
def client(service):
    with client_of("user") as client:
        yield client


def traced():
    """(headers, trace id, span id) of a client that traces."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return {"traceparent": f"00-{trace_id}-{span_id}-01", "x-request-id": f"r-{trace_id[:6]}"}, trace_id, span_id


def spans_of(collector, trace_id, count):
    wait_until(lambda: sum(span.trace_id == trace_id for span in collector.spans) >= count, EXPORTED_S)
    return {span.name: span for span in collector.spans if span.trace_id == trace_id}


@pytest.mark.parametrize("stream", [False, True])
def test_a_traced_request_has_serves_span_with_its_precision_and_vllms_below_it(client, collector, stream):
    headers, trace_id, span_id = traced()
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "stream": stream}
    answer = client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    spans = spans_of(collector, trace_id, 2)
    engine = spans.pop("llm_request")
    (request,) = spans.values()
    assert (request.parent_id, engine.parent_id) == (span_id, request.span_id)
    assert request.service == engine.service == "nestedfp"
    assert request.attributes["nestedfp.id"] == headers["x-request-id"]
    assert request.attributes["nestedfp.outcome"] == "ok"
    tokens = [request.attributes[f"nestedfp.completion_{mode}_tokens"] for mode in ("fp16", "fp8")]
    assert sum(tokens) == 8
    assert request.attributes["nestedfp.ttft_ms"] > 0
    assert engine.attributes["gen_ai.usage.completion_tokens"] == 8
    assert engine.attributes["gen_ai.latency.time_to_first_token"] > 0


def test_a_refused_request_has_a_span_that_says_so_and_none_of_the_engine(client, collector):
    headers, trace_id, _ = traced()
    answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": -1}, headers=headers)
    assert answer.status_code == 400
    (request,) = spans_of(collector, trace_id, 1).values()
    assert request.attributes["nestedfp.status"] == 400
    assert request.attributes["nestedfp.outcome"] == "invalid"


def test_a_request_that_is_not_sampled_leaves_no_span(client, collector):
    complete(client)
    untraced, trace_id, _ = traced()
    untraced["traceparent"] = untraced["traceparent"][:-1] + "0"
    client.post("/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": 2}, headers=untraced)
    asked, after, _ = traced()
    client.post("/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": 2}, headers=asked)
    assert len(spans_of(collector, after, 2)) == 2  # what came before has been exported by now
    assert not [span for span in collector.spans if span.trace_id == trace_id]
    requests = [span for span in collector.spans if span.name == "llm_request"]
    assert all(span.parent_id for span in requests), "each has been asked for by a client"
