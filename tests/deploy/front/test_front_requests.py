"""A request before vLLM sees it: read, parsed, pinned, bounded, or refused with one sentence."""

import json

import pytest
from vllm_parts import SamplingParams  # noqa: F401  first: it silences third-party warnings

from deploy.access.admission import Asked
from deploy.front.checks.asked import asked_of
from deploy.front.checks.faults import one_line
from deploy.front.checks.requests import (
    apply_precision,
    check_bounds,
    parse,
    queue_deadline_s,
    stated_precision,
    stated_priority,
)
from deploy.front.replies import Refused
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision

vllm = pytest.importorskip("vllm")

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # noqa: E402

JSON = {b"content-type": b"application/json"}


def completion(headers=JSON, **body):
    return parse(json.dumps({"model": "m", "prompt": "x", **body}).encode(), headers, CompletionRequest, check_bounds)


def chat(**body):
    return parse(
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **body}).encode(),
        JSON,
        ChatCompletionRequest,
        check_bounds,
    )


def refusal(call, *args, **kwargs):
    with pytest.raises(Refused) as caught:
        call(*args, **kwargs)
    return caught.value


# -- what it says ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        b"", b"text/plain", b"application/jsonx", b"multipart/form-data", b"text/plain; x=+json", b"text/plain;+json",
        b"text/plain; charset=application/json", b"text/plain, application/json", b"text/plain x+json", b"+json",
        b"\xe9/x+json", b"application/x-www-form-urlencoded; a=b+json", b"application/json, text/plain",
    ],
)  # fmt: skip
def test_a_body_that_was_not_sent_as_json_is_told_which_header_to_send(kind):
    error = refusal(completion, {b"content-type": kind})
    assert (error.status, "'Content-Type: application/json'" in str(error)) == (400, True)


@pytest.mark.parametrize(
    "kind",
    [b"application/json", b"Application/JSON; charset=utf-8", b"application/problem+json", b"application/json ;x"],
)
def test_json_by_any_of_its_names_is_taken(kind):
    assert completion({b"content-type": kind}).prompt == "x"


@pytest.mark.parametrize(
    ("coding", "status"), [(b"gzip", 415), (b"br, identity", 415), (b"\xe9", 415), (b"Identity", None)]
)
def test_a_compressed_body_is_told_so(coding, status):
    headers = {**JSON, b"content-encoding": coding}
    if status is None:
        assert completion(headers).prompt == "x"
    else:
        error = refusal(completion, headers)
        assert (error.status, "send it uncompressed" in str(error)) == (status, True)


@pytest.mark.parametrize("text", ["at /usr/lib/x.py line 3", "<X at 0x7f00a1b2>"])
def test_an_errors_line_shows_no_path_and_no_address(text):
    assert not set(one_line(text)) & set("/0")
    assert one_line("first\nsecond") == "first second"
    assert len(one_line("x" * 1000)) == 600


# -- the precision that is asked for ---------------------------------------------------------------------------------------


def asking_for(header=None, **body):
    return stated_precision(completion(**body), {b"x-nestedfp-precision": header} if header is not None else {})


@pytest.mark.parametrize("alias", ["exact", "fp16"])
@pytest.mark.parametrize(
    ("header", "body", "asked"),
    [
        (None, {}, None),
        ("auto", {}, "auto"),
        ("PIN", {}, "exact"),
        (None, {"precision": "PIN"}, "exact"),
        (None, {"vllm_xargs": {"precision": "PIN"}}, "exact"),
        ("PIN", {"precision": "auto", "vllm_xargs": {"precision": "auto"}}, "exact"),  # auto contradicts nothing
        ("auto", {"vllm_xargs": {"precision": "PIN"}}, "exact"),
        ("PIN", {"precision": "exact"}, "exact"),
        ("fast", {"precision": "auto"}, "fast"),
        (None, {"precision": "fast"}, "fast"),
    ],
)
def test_body_and_header_say_what_is_asked_for(alias, header, body, asked):
    body = json.loads(json.dumps(body).replace("PIN", alias))
    assert asking_for(header and header.replace("PIN", alias).encode(), **body) == asked


@pytest.mark.parametrize("asked", list(AskedPrecision))
def test_what_is_asked_for_reaches_the_engine_beside_what_else_the_body_says(asked):
    request = completion(vllm_xargs={"other": 1})
    apply_precision(request, asked)
    assert request.vllm_xargs == {"other": 1} | ({} if asked is AskedPrecision.AUTO else {"precision": asked.value})


@pytest.mark.parametrize("given", [b"fp8", b"EXACT", b"", b"\xff", b"exact, exact"])
def test_another_precision_is_refused(given):
    error = refusal(asking_for, given)
    assert (error.status, error.param) == (400, "x-nestedfp-precision")
    assert all(name in str(error) for name in ("'exact'", "'fast'", "'auto'"))


@pytest.mark.parametrize("wrong", ["fp17", 5, ["exact"], {"a": 1}, False])
def test_a_wrong_one_in_one_place_is_refused_although_another_has_a_right_one(wrong):
    assert refusal(asking_for, b"exact", precision=wrong).param == "precision"
    assert refusal(asking_for, b"8", precision="exact").param == "x-nestedfp-precision"
    assert refusal(asking_for, b"exact", vllm_xargs={"precision": "fp17"}).param == "vllm_xargs.precision"


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"fast", {"precision": "exact"}),
        (b"fp16", {"vllm_xargs": {"precision": "fast"}}),
        (b"auto", {"precision": "fast", "vllm_xargs": {"precision": "fp16"}}),
    ],
)
def test_an_exact_answer_and_a_fast_one_contradict_each_other(header, body):
    error = refusal(asking_for, header, **body)
    assert (error.status, "leave one of the two out" in str(error)) == (400, True)


def test_a_promise_that_could_not_be_kept_is_refused():
    error = refusal(apply_precision, completion(use_beam_search=True), AskedPrecision.EXACT)
    assert (error.status, "use_beam_search cannot be exact" in str(error)) == (400, True)
    apply_precision(completion(use_beam_search=True), AskedPrecision.FAST)


# -- the bounds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"n": 1025}, "at most 1024 sequences in one request, got 1025"),
        ({"n": 600, "prompt": ["a", "b"]}, "got 1200"),
        ({"stop": ["x" * 5000]}, "stop: at most 4096 characters"),
        ({"stop_token_ids": [1] * 2000}, "stop_token_ids: at most 1024 entries"),
        ({"allowed_token_ids": [1] * 262_145}, "allowed_token_ids: at most 262144 entries"),
        ({"bad_words": ["x"] * 2000}, "bad_words: at most 1024"),
        ({"vllm_xargs": {f"k{i}": 1 for i in range(1025)}}, "vllm_xargs: at most 1024"),
        ({"top_k": 10**20}, "top_k is expected between"),
    ],
)
def test_what_would_cost_the_neighbours_is_refused_with_its_bound(body, told):
    error = refusal(completion, **body)
    assert error.status == 400
    assert told in str(error)


# -- what it asks of the engine, and how it waits ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"prompt": "x" * 40}, Asked(1, 1, 10, 16)),  # vLLM's completions have 16 tokens unless they say otherwise
        ({"prompt": ["x" * 40, "y" * 80], "n": 3, "max_tokens": 5}, Asked(2, 3, 30, 5)),
        ({"prompt": [7] * 40, "max_tokens": 5}, Asked(1, 1, 40, 5)),
        ({"prompt": [[7] * 40, [8] * 2], "max_tokens": 5}, Asked(2, 1, 42, 5)),
    ],
)
def test_what_a_completion_asks_for_is_estimated_from_its_texts_and_known_from_token_ids(body, wanted):
    assert asked_of(completion(**body)) == wanted


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"messages": [{"role": "user", "content": "x" * 40}] * 2}, Asked(1, 1, 20, None)),
        ({"max_tokens": 5, "n": 2}, Asked(1, 2, 0, 5)),
        ({"max_completion_tokens": 7, "max_tokens": 5}, Asked(1, 1, 0, 7)),
    ],
)
def test_what_a_chat_asks_for(body, wanted):
    assert asked_of(chat(**body)) == wanted


def test_the_parts_of_a_message_can_still_be_read_after_they_were_counted():
    parts = [{"type": "text", "text": "x" * 40}, {"type": "text", "text": "y"}]
    request = chat(messages=[{"role": "user", "content": parts}])
    asked_of(request)
    assert [part["text"] for part in request.messages[0]["content"]] == ["x" * 40, "y"]


@pytest.mark.parametrize(
    ("xargs", "header", "wanted"),
    [
        (None, None, 9.0),
        ({"queue_deadline_s": 2}, None, 2.0),
        ({"queue_deadline_s": "0.5"}, None, 0.5),
        (None, b"0.25", 0.25),
        ({"queue_deadline_s": 2}, b"5", 2.0),
        ({"queue_deadline_s": 5}, b"2", 2.0),
    ],
)
def test_a_queue_deadline_is_the_stricter_of_the_bodys_and_the_headers_or_else_the_configurations(
    xargs, header, wanted
):
    headers = {} if header is None else {b"x-nestedfp-queue-deadline-s": header}
    request = completion(vllm_xargs=xargs)
    assert queue_deadline_s(request, headers, 9.0) == wanted


@pytest.mark.parametrize("given", [0, -1, "soon", "nan", "inf", 1e9, "1" * 400, [1]])
def test_a_queue_deadline_that_is_none_is_refused(given):
    error = refusal(queue_deadline_s, completion(vllm_xargs={"queue_deadline_s": given}), {}, None)
    assert (error.status, error.param) == (400, "vllm_xargs.queue_deadline_s")
    assert len(str(error)) < 300


@pytest.mark.parametrize(("header", "wanted"), [(None, 3), (b"-2", -2), (b"0", 0)])
def test_a_priority_is_the_headers_or_the_bodys(header, wanted):
    headers = {} if header is None else {b"x-vllm-priority": header}
    assert stated_priority(completion(priority=3), headers) == wanted


@pytest.mark.parametrize("header", [b"9" * 30, b"9" * 5000, b"soon", b"", b"1.5", "\xb2".encode("latin-1")])
def test_a_priority_that_is_none_or_that_the_engine_cannot_keep_is_refused(header):
    error = refusal(stated_priority, completion(priority=3), {b"x-vllm-priority": header})
    assert (error.status, error.param) == (400, "x-vllm-priority")
    assert "whole number between" in str(error)
    assert f"got {header.decode('latin-1')!r:.40}" in str(error)
