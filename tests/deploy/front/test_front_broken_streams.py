"""Answers that have begun and do not end well: the engine dies, hangs or gives up, or the client leaves."""

import asyncio
import json

import pytest
from front_calls import GOOD, ID, Client, Peers, SamplingParams, ask, asking, error_of, front, output, quota, stream_of
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from deploy.access.admission import Admission
from deploy.front.context import CONTEXT, PathMeter
from deploy.front.handover import EngineClientProxy
from deploy.haproxy.haproxy_config import ATTEMPT_HEADER
from deploy.replica.drain import DrainOver
from deploy.replica.health_routes import EngineHung


def vllms_stream(*events, failed):
    """A ``do`` whose stream is vLLM's own: it makes an event of what the engine raises."""

    async def do(request):
        async def streamed():
            for event in events:
                yield f"data: {json.dumps(event)}\n\n"
            CONTEXT.get().failed = failed
            CONTEXT.get().submitted()
            error = {"message": "See stack trace (above).", "type": "InternalServerError", "param": None, "code": 500}
            yield f"data: {json.dumps({'error': error})}\n\n"
            yield "data: [DONE]\n\n"

        return streamed()

    return do


BROKEN = [
    (EngineDeadError(), 503, "the engine has died; it is being replaced; this request was in it"),
    (EngineHung("it hangs"), 503, "it hangs; this request was in it and is given up"),
    (DrainOver("it ends"), 503, "it ends; this request was in it and is given up"),
]


EACH_BREAK = pytest.mark.parametrize(("error", "code", "message"), BROKEN, ids=["dies", "hangs", "leaves"])


@EACH_BREAK
@pytest.mark.parametrize("own", [False, True], ids=["lean", "vLLM's own"])
def test_a_stream_whose_engine_breaks_ends_with_an_error_event_and_the_end_mark(own, error, code, message):
    Client.aborted, meter = 0, PathMeter()
    chunk = {"choices": [{"index": 0, "text": "a", "finish_reason": None}], "usage": None}
    do = vllms_stream(chunk, failed=error) if own else stream_of(output("a"), error)
    status, headers, body = ask(front(do, meter=meter), body={**GOOD, "stream": True, "n": 1 + own})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    first, second, end, nothing = body.decode().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "a"
    said = json.loads(second.removeprefix("data: "))["error"]
    assert (said["code"], said["message"], said["request_id"]) == (code, message, ID)
    assert (end, nothing) == ("data: [DONE]", "")
    assert Client.aborted == (not own), "should the engine wake up, it need not go on"
    assert meter.stats(0.0).open_streams == 0


@EACH_BREAK
@pytest.mark.parametrize("own", [False, True], ids=["lean", "vLLM's own"])
def test_a_stream_whose_engine_breaks_before_the_first_token_is_a_status(own, error, code, message):
    do = vllms_stream(failed=error) if own else stream_of(error)
    answer = ask(front(do, Peers()), body={**GOOD, "stream": True, "n": 1 + own}, headers={ATTEMPT_HEADER: "a"})
    assert (answer[0], error_of(answer)) == (code, message)
    assert "retry-after" in answer[1]


def test_a_whole_answer_of_an_engine_that_hangs_is_a_status_although_vllm_wraps_the_error():
    class Hung(Client):
        async def generate(self, prompt, params, request_id, **options):
            yield output("a")
            raise EngineGenerateError from EngineHung("its engine has not answered for 10 s")

    async def do(request):
        return [
            each async for each in EngineClientProxy(Hung()).generate({"prompt_token_ids": [7]}, SamplingParams(), "r")
        ]

    answer = ask(front(do))
    assert answer[0] == 503
    assert "has not answered for 10 s; this request was in it and is given up" in error_of(answer)
    assert "retry-after" in answer[1]


def test_a_stream_that_the_engine_ends_with_an_error_says_so():
    body = ask(front(stream_of(output("a"), output("", "error"))), body={**GOOD, "stream": True})[2]
    assert b'"error"' in body
    assert body.endswith(b"data: [DONE]\n\n")


def test_a_request_that_the_engine_ends_before_its_first_token_is_the_requests_fault():
    refused = output("", "error")
    refused.outputs[0].token_ids = []
    answer = ask(front(stream_of(refused)), body={**GOOD, "stream": True})
    assert answer[0] == 400
    assert "cannot be processed" in error_of(answer)


def test_a_client_that_leaves_aborts_the_request_and_frees_its_place():
    Client.aborted = 0
    admission, meter = Admission(4, 8), PathMeter()
    app = front(stream_of(output("a")), admission=admission, meter=meter)  # and then nothing more

    async def leave():
        asking_ = asyncio.create_task(asking(app, body={**GOOD, "stream": True, "n": 1}))
        while not meter.stats(0.0).open_streams or not admission.inside:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        asking_.cancel()
        await asyncio.gather(asking_, return_exceptions=True)

    asyncio.run(leave())
    assert Client.aborted == 1
    assert (admission.inside, meter.stats(0.0).open_streams, meter.stats(0.0).in_path) == (0, 0, 0)


def test_a_client_that_leaves_before_an_answer_in_one_piece_counts_as_left_though_vllm_makes_an_error_of_it():
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    lines = []
    meter = PathMeter(log=lines.append)

    async def do(request):
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # as vLLM's serving objects do
            return create_error_response("Client disconnected")

    async def leave():
        client = asyncio.create_task(asking(front(do, meter=meter)))
        await asked.wait()
        client.cancel()
        await client

    asked = asyncio.Event()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(leave())
    assert [(line["outcome"], line["status"]) for line in lines] == [("left", None)]


async def left_after(app, there):
    """A client leaves a stream as soon as ``there`` says so."""
    client = asyncio.create_task(asking(app, body={**GOOD, "stream": True}, headers={"authorization": "Bearer secret"}))
    async with asyncio.timeout(10):
        while not there():
            await asyncio.sleep(0)
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)


def test_a_client_that_leaves_a_plain_stream_has_used_its_prompt_and_what_it_got(tmp_path):
    keys, used = quota(tmp_path)
    meter = PathMeter()
    app = front(stream_of(output("a"), prompt={"prompt_token_ids": [7] * 50}), meter=meter, keys=keys)
    asyncio.run(left_after(app, lambda: meter.ttft.summary(meter.clock()).count))
    assert used() == 51
