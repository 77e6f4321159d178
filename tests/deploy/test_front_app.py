"""The outermost layer of a replica: which routes exist, who answers them, and what a client hears when something fails."""

import asyncio
import hashlib
import json
from types import SimpleNamespace

import pytest
from hand_clock import HandClock
from vllm_parts import SamplingParams  # first: it silences third-party warnings

from deploy.admission import Admission, Asked
from deploy.front import streams
from deploy.front.app import Front
from deploy.front.generate import Generate, Queueing, Route
from deploy.front.handover import TURN, Engine, EngineCall, Handover
from deploy.front.meter import PathMeter
from deploy.front.pages import Shown
from deploy.front.peers import RETRYABLE_BODY_BYTES, Elsewhere, Standing
from deploy.front.replies import OVERLOADED, Refused
from deploy.front.streams import Frame
from deploy.haproxy_config import ATTEMPT_HEADER, ELSEWHERE_STATUS
from deploy.health import EngineHung
from deploy.keys import Keys

vllm = pytest.importorskip("vllm")

from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # noqa: E402
from vllm.exceptions import VLLMValidationError  # noqa: E402
from vllm.outputs import CompletionOutput, RequestOutput  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError  # noqa: E402
from vllm.v1.engine.output_processor import RequestOutputCollector  # noqa: E402

PATH = "/v1/completions"
LIMIT = 1000
GOOD = {"model": "m", "prompt": "x"}
ID = 'the "first"'


class Serving:
    """Stands where vLLM's serving object stands; does what the test says."""

    def __init__(self, do):
        self._do = do

    async def create(self, request, raw):
        return await self._do(request)


class Peers(Standing):
    """What the controller told: there are others."""

    def __init__(self, peers=1, fp16_elsewhere=False, fault=None, late=False):
        self._peers, self._fp16 = peers, fp16_elsewhere
        self._fault, self._late = fault, late

    @property
    def replicas(self):
        return 1 + self._peers

    def pinned_go_elsewhere(self):
        return self._fp16

    @property
    def fault(self):
        return self._fault

    @property
    def engine_is_late(self):
        return self._late


async def other(scope, receive, send):
    """vLLM's application: says what it was asked."""
    body = (await receive()).get("body", b"") if scope["method"] == "POST" else b""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"vllm:" + scope["path"].encode() + b":" + body})


class Client:
    errored = False
    aborted = 0

    async def abort(self, *args, **kwargs):
        Client.aborted += 1


def front(do=None, standing=None, admission=None, client=None, meter=None, keys=None, queueing=None):
    routes = {PATH: Route(CompletionRequest, Serving(do), "create", chat=False)}
    admission = admission or Admission(None, 8)
    generate = Generate(
        routes,
        client or Client(),
        admission,
        meter or PathMeter(),
        standing or Standing(),
        LIMIT,
        keys,
        queueing or Queueing(),
    )
    return Front(other, generate, LIMIT)


def ask(app, path=PATH, method="POST", body=None, headers=None):
    """(status, headers, body) of one request."""
    return asyncio.run(asking(app, path, method, body, headers))


async def asking(app, path=PATH, method="POST", body=None, headers=None, chunks=None):
    content = json.dumps(GOOD if body is None else body).encode() if not isinstance(body, bytes) else body
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in chunks or []]
    waiting.append({"type": "http.request", "body": b"" if chunks else content})
    sent = []

    async def receive():
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    given = {"content-type": "application/json", "x-request-id": ID, **(headers or {})}
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    await app(scope, receive, send)
    assert sent[0]["type"] == "http.response.start"
    assert not sent[-1].get("more_body"), "the answer has an end"
    return (
        sent[0]["status"],
        {name.decode(): value.decode() for name, value in sent[0]["headers"]},
        b"".join(message.get("body", b"") for message in sent[1:]),
    )


def error_of(answer):
    error = json.loads(answer[2])["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert (error["code"], error["request_id"]) == (answer[0], ID)
    return error["message"]


def failing(error):
    async def do(request):
        raise error

    return do


# -- routes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/version"])
def test_routes_that_only_tell_are_vllms(path):
    assert ask(front(), path, "GET")[2] == b"vllm:" + path.encode() + b":"


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_routes_that_take_a_body_get_it_as_it_came(path):
    assert ask(front(), path, "POST", b"{1}")[2] == b"vllm:" + path.encode() + b":{1}"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/metrics",
        "/sleep",
        "/reset_prefix_cache",
        "/collective_rpc",
        "/v1/completions/",
        "/v1/responses",
        "/v1/load_lora_adapter",
        "/invocations",
        "/inference/v1/generate",
        "/pause",
        "/v1/modelsx",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_not_named_does_not_exist(path, method):
    answer = ask(front(), path, method)
    assert answer[0] == 404
    assert "there is no" in error_of(answer)


@pytest.mark.parametrize(
    ("path", "method"), [(PATH, "GET"), ("/tokenize", "GET"), ("/v1/models", "POST"), (PATH, "HEAD")]
)
def test_another_method_gets_405(path, method):
    answer = ask(front(), path, method)
    assert answer[0] == 405
    assert "takes" in error_of(answer)


@pytest.mark.parametrize("path", [PATH, "/tokenize"])
def test_a_body_in_chunks_beyond_the_limit_gets_413(path):
    answer = asyncio.run(asking(front(), path, chunks=[b"x" * 600, b"x" * 600]))
    assert answer[0] == 413
    assert f"larger than {LIMIT} bytes" in error_of(answer)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_what_vllm_refuses_is_400_with_its_sentence():
    answer = ask(front(failing(VLLMValidationError("too long", parameter="prompt", value=3))))
    assert answer[0] == 400
    assert "too long" in error_of(answer)


@pytest.mark.parametrize("error", [KeyError("x"), AttributeError("None"), RecursionError(), OSError("/x")])
def test_what_fails_before_the_engine_has_the_request_is_the_requests_fault(error):
    answer = ask(front(failing(error)))
    assert answer[0] == 400
    assert "cannot be processed" in error_of(answer)
    assert b"Traceback" not in answer[2]


def test_what_vllm_wraps_before_the_engine_has_taken_the_request_is_told_by_its_cause():
    async def do(request):
        raise EngineGenerateError from VLLMValidationError("regex: escape at the end", parameter="regex", value=1)

    answer = ask(front(do))
    assert answer[0] == 400
    assert "escape at the end" in error_of(answer)


@pytest.mark.parametrize("body", [b'{"error":{"message":"no","code":404}}', b'{"detail":"no"}', b"no", b"[]"])
@pytest.mark.parametrize("chunks", [1, 2])
def test_an_error_of_vllms_application_gets_the_requests_id(body, chunks):
    async def vllms(scope, receive, send):
        headers = [(b"content-type", b"application/json"), (b"Content-Length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        cut = len(body) // chunks
        await send({"type": "http.response.body", "body": body[:cut], "more_body": chunks == 2})
        if chunks == 2:
            await send({"type": "http.response.body", "body": body[cut:]})

    app = front()
    app._app = vllms
    status, headers, answer = ask(app, "/v1/models", "GET")
    assert (status, int(headers["content-length"])) == (404, len(answer))
    if body.startswith(b"{"):
        said = json.loads(answer)
        assert said.get("error", said).pop("request_id") == ID
        assert said == json.loads(body)
    else:
        assert answer == body


def test_a_page_that_says_no_says_to_which_request():
    async def unhealthy():
        return Shown(503, "application/json", b'{"status":"not ready"}')

    app = front()
    app._pages["/ready"] = unhealthy
    answer = ask(app, "/ready", "GET")
    assert (answer[0], json.loads(answer[2])) == (503, {"status": "not ready", "request_id": ID})


def test_what_fails_in_the_engine_is_500_without_details():
    async def do(request):
        TURN.get().accepted = True
        raise EngineGenerateError from RuntimeError("in /secret/place.py")

    answer = ask(front(do))
    assert answer[0] == 500
    assert error_of(answer) == "the engine failed on this request"


@pytest.mark.parametrize("peers", [False, True])
def test_an_engine_that_died_before_it_had_the_request_sends_it_on(peers):
    app = front(failing(EngineDeadError()), Peers(peers))
    headers = {ATTEMPT_HEADER: "a"}
    answer = ask(app, headers=headers)
    assert answer[0] == ELSEWHERE_STATUS, "whatever the controller counts: it does not count this one any more"
    assert "retry-after" in answer[1]
    assert ask(app, headers=headers)[0] == 503, "at second sight there is nobody else"


def test_an_engine_that_died_of_a_request_does_not_send_it_to_the_next_one():
    async def do(request):
        TURN.get().passage.submitted()
        raise EngineDeadError

    answer = ask(front(do, Peers()), headers={ATTEMPT_HEADER: "a"})
    assert answer[0] == 503
    assert "this request was in it" in error_of(answer)
    assert "retry-after" in answer[1]


def test_a_replica_whose_engine_is_dead_does_not_even_try():
    client = Client()
    client.errored = True
    app = front(failing(AssertionError("was tried")), Peers(), client=client)
    assert ask(app, headers={ATTEMPT_HEADER: "a"})[0] == ELSEWHERE_STATUS
    assert ask(app)[0] == 503, "without HAProxy in front nobody would try again"


def test_a_replica_whose_engine_hangs_takes_nothing_and_says_why():
    app = front(
        failing(AssertionError("was tried")), Peers(False, fault="its engine has not answered for 9 s: it hangs")
    )
    assert ask(app, headers={ATTEMPT_HEADER: "a"})[0] == ELSEWHERE_STATUS
    answer = ask(app, headers={ATTEMPT_HEADER: "a"})
    assert answer[0] == 503
    assert "its engine has not answered for 9 s" in error_of(answer)
    assert "retry-after" in answer[1]


@pytest.mark.parametrize(("peers", "first"), [(True, ELSEWHERE_STATUS), (False, 200)])
def test_while_an_engine_is_late_requests_go_to_a_replica_beside_it_and_come_back_if_there_is_none(peers, first):
    app = front(stream_of(output("a", "length")), Peers(peers, late=True))
    asked = [ask(app, body={**GOOD, "stream": True}, headers={ATTEMPT_HEADER: "a"})[0] for _ in range(2)]
    assert asked == [first, 200]


# -- streams that break ------------------------------------------------------------------------------------------------


def stream_of(*steps, prompt=None):
    """A ``do`` whose stream brings the outputs, or raises the errors, one after the other."""

    async def do(request):
        collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")

        class Engine(Client):
            async def add_request(self, *args, **options):
                async def feed():
                    for step in steps:
                        while collector.output is not None:
                            await asyncio.sleep(0)
                        collector.put(step)

                self.feeding = asyncio.create_task(feed())
                return collector

        frame = Frame.make("id", 1, "m", chat=False, include_usage=False)
        return Handover(EngineCall(Engine(), prompt, SamplingParams(), "r", {}), frame)

    return do


def output(text, finish=None):
    completion = CompletionOutput(0, text, [1], None, None, finish_reason=finish)
    return RequestOutput("r", None, [1], None, [completion], finish is not None)


def test_an_engine_that_dies_in_mid_stream_ends_it_with_an_error_event_and_the_end_mark():
    Client.aborted = 0
    meter = PathMeter()
    status, headers, body = ask(
        front(stream_of(output("a"), EngineDeadError()), meter=meter), body={**GOOD, "stream": True}
    )
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    first, second, end, nothing = body.decode().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "a"
    error = json.loads(second.removeprefix("data: "))["error"]
    assert (error["code"], "the engine has died" in error["message"], error["request_id"]) == (503, True, ID)
    assert (end, nothing) == ("data: [DONE]", "")
    assert Client.aborted == 1
    assert meter.stats(0.0).open_streams == 0


def vllms_stream(*events, failed):
    """A ``do`` whose stream is vLLM's own: it makes an event of what the engine raises."""

    async def do(request):
        async def streamed():
            for event in events:
                yield f"data: {json.dumps(event)}\n\n"
            TURN.get().failed = failed
            TURN.get().passage.submitted()
            error = {"message": "See stack trace (above).", "type": "InternalServerError", "param": None, "code": 500}
            yield f"data: {json.dumps({'error': error})}\n\n"
            yield "data: [DONE]\n\n"

        return streamed()

    return do


BROKEN = [
    (EngineDeadError(), 503, "the engine has died; it is being replaced; this request was in it"),
    (EngineHung("it hangs"), 503, "it hangs; this request was in it and is given up"),
]


@pytest.mark.parametrize(("error", "code", "message"), BROKEN, ids=["dies", "hangs"])
def test_a_stream_of_vllms_own_that_breaks_with_its_engine_says_what_happened(error, code, message):
    chunk = {"choices": [{"index": 0, "text": "a", "finish_reason": None}], "usage": None}
    app = front(vllms_stream(chunk, failed=error))
    status, _, body = ask(app, body={**GOOD, "stream": True, "n": 2})
    assert status == 200
    _, second, end, _ = body.decode().split("\n\n")
    said = json.loads(second.removeprefix("data: "))["error"]
    assert (said["code"], said["message"], said["request_id"], end) == (code, message, ID, "data: [DONE]")


@pytest.mark.parametrize(("error", "code", "message"), BROKEN, ids=["dies", "hangs"])
def test_a_stream_of_vllms_own_whose_engine_breaks_before_the_first_token_is_a_status(error, code, message):
    answer = ask(front(vllms_stream(failed=error)), body={**GOOD, "stream": True, "n": 2})
    assert (answer[0], error_of(answer)) == (code, message)
    assert "retry-after" in answer[1]


def test_what_vllm_stumbles_over_in_the_parts_of_a_dead_engine_is_no_fault_of_the_request():
    client = Client()

    async def do(request):
        client.errored = True  # while the request was on its way
        raise EngineGenerateError from OSError("not a socket")

    answer = ask(front(do, client=client), headers={ATTEMPT_HEADER: "a"})
    assert answer[0] == ELSEWHERE_STATUS


def test_a_stream_of_an_engine_that_hangs_ends_with_an_event_that_says_so_and_is_aborted():
    Client.aborted = 0
    hung = EngineHung("this replica is to be replaced: its engine has not answered for 10 s")
    body = ask(front(stream_of(output("a"), hung)), body={**GOOD, "stream": True})[2]
    _, second, end, _ = body.decode().split("\n\n")
    error = json.loads(second.removeprefix("data: "))["error"]
    assert (error["code"], end) == (503, "data: [DONE]")
    assert error["message"] == f"{hung}; this request was in it and is given up"
    assert Client.aborted == 1, "should the engine wake up, it need not go on"


def test_a_whole_answer_of_an_engine_that_hangs_is_a_status_although_vllm_wraps_the_error():
    class Hung(Client):
        async def generate(self, prompt, params, request_id, **options):
            yield output("a")
            raise EngineGenerateError from EngineHung("its engine has not answered for 10 s")

    async def do(request):
        return [each async for each in Engine(Hung()).generate({"prompt_token_ids": [7]}, SamplingParams(), "r")]

    answer = ask(front(do))
    assert answer[0] == 503
    assert "has not answered for 10 s; this request was in it and is given up" in error_of(answer)
    assert "retry-after" in answer[1]


def test_an_engine_that_dies_before_the_first_token_gives_a_status():
    answer = ask(
        front(stream_of(EngineDeadError()), Peers()), body={**GOOD, "stream": True}, headers={ATTEMPT_HEADER: "a"}
    )
    assert answer[0] == 503
    assert "this request was in it" in error_of(answer)


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


async def left_after(app, there):
    """A client leaves a stream as soon as ``there`` says so."""
    client = asyncio.create_task(asking(app, body={**GOOD, "stream": True}, headers={"authorization": "Bearer secret"}))
    async with asyncio.timeout(10):
        while not there():
            await asyncio.sleep(0)
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)


def quota(tmp_path):
    """Keys of one holder, of 600 tokens a minute, and what that holder has used of them."""
    entry = {"name": "u", "tokens_per_minute": 600, "sha256": hashlib.sha256(b"secret").hexdigest()}
    (tmp_path / "keys.yaml").write_text(json.dumps({"keys": [entry]}))  # JSON is YAML
    keys = Keys(tmp_path / "keys.yaml", clock=lambda: 0.0)
    return keys, lambda: keys.holder("Bearer secret")._tokens._used


def test_a_client_that_leaves_a_plain_stream_has_used_its_prompt_and_what_it_got(tmp_path):
    keys, used = quota(tmp_path)
    meter = PathMeter()
    app = front(stream_of(output("a"), prompt={"prompt_token_ids": [7] * 50}), meter=meter, keys=keys)
    asyncio.run(left_after(app, lambda: meter.ttft.summary(meter.clock()).count))
    assert used() == 51


def test_a_client_that_leaves_a_stream_of_vllms_has_used_its_prompts_and_what_it_got(tmp_path):
    keys, used = quota(tmp_path)
    meter = PathMeter()

    class Endless(Client):
        async def generate(self, prompt, params, request_id, **options):
            yield output("a")
            await asyncio.Event().wait()

    async def do(request):
        async def events():
            for ids in ([7] * 50, [8] * 20):
                stream = Engine(Endless()).generate({"prompt_token_ids": ids}, SamplingParams(), "r")
                async for _ in stream:
                    yield "data: {}\n\n"
                    break

            await asyncio.Event().wait()

        return events()

    asyncio.run(left_after(front(do, meter=meter, keys=keys), lambda: meter.tpot.summary(meter.clock()).count))
    assert used() == 72


def test_fields_that_nothing_reads_are_named_in_a_header():
    app = front(stream_of(output("a", "length")))
    headers = ask(app, body={**GOOD, "stream": True, "temprature": 0, "schlüssel": 1})[1]
    assert headers["x-nestedfp-ignored"] == "schl?ssel, temprature"
    assert "x-nestedfp-ignored" not in ask(app, body={**GOOD, "stream": True})[1]


# -- admission and other replicas --------------------------------------------------------------------------------------


def full():
    admission = Admission(2, 8)
    admission.enter(Asked(prompts=2))
    return admission


@pytest.mark.parametrize("peers", [False, True])
def test_a_full_replica_sends_a_request_on_where_there_is_somebody_else(peers):
    app = front(failing(AssertionError("was let in")), Peers(peers), full())
    answer = ask(app, headers={ATTEMPT_HEADER: "a"})
    assert answer[0] == (ELSEWHERE_STATUS if peers else 429)
    assert "computes 2 sequences and takes 2" in error_of(answer)
    assert "retry-after" in answer[1]
    assert ask(app, headers={ATTEMPT_HEADER: "a"})[0] == 429


@pytest.mark.parametrize(("replicas", "took_it", "load"), [(1, 0, 12), (3, 0, 12), (3, 2, 4), (3, 1, 8), (10, 2, 9)])
def test_a_request_counts_once_towards_the_load_however_many_replicas_refuse_it(replicas, took_it, load):
    """Of replicas that are asked in turn, the last ``took_it`` would take it; of ten, eight are asked."""
    doors = [full() for _ in range(min(replicas, 8) - took_it)]
    apps = [front(failing(AssertionError("was let in")), Peers(replicas - 1), door) for door in doors]
    for number in range(12):
        headers = {ATTEMPT_HEADER: f"a{number}"}
        answers = [ask(app, headers=headers)[0] for app in apps]
        assert answers == [ELSEWHERE_STATUS if replicas > 1 else 429] * len(apps)
        if replicas > 1 and not took_it:
            assert ask(apps[0], headers=headers)[0] == 429, "it has come back, refused by all"
    assert sum(door._turned_away for door in doors) == pytest.approx(load)
    assert sum(door.refused for door in doors) == pytest.approx(
        sum(door._turned_away for door in doors), abs=len(doors)
    )


@pytest.mark.parametrize(
    ("status", "kind", "outcome"),
    [
        *((400, "invalid_request_error", "invalid"), (404, "not_found", "invalid"), (500, "internal_error", "failed")),
        *((401, "authentication_error", "denied"), (403, "permission_error", "denied"), (429, "rate_limit", "refused")),
        *((429, OVERLOADED, "refused"), (503, OVERLOADED, "refused"), (503, "service_unavailable", "failed")),
        *((ELSEWHERE_STATUS, OVERLOADED, "elsewhere"), (ELSEWHERE_STATUS, "service_unavailable", "elsewhere")),
    ],
)
def test_a_refusal_says_as_what_its_request_counts(status, kind, outcome):
    assert Refused(status, "no", kind).outcome == outcome


def test_what_goes_wrong_right_after_a_request_was_let_in_frees_its_place(monkeypatch):
    admission, meter = Admission(2, 8, tokens=1000), PathMeter()
    entered = []

    def breaks(request, chat):
        entered.append(admission.inside)
        raise RuntimeError("a field that nobody thought of")

    monkeypatch.setattr(streams, "is_plain", breaks)
    with pytest.raises(RuntimeError, match="nobody thought of"):
        ask(front(admission=admission, meter=meter))
    assert entered == [1]
    assert (admission.inside, admission.tokens_inside, meter.stats(0.0).in_path) == (0, 0, 0)


def test_a_request_enters_with_the_weight_of_its_sequences():
    admission, weights = Admission(8, 8), []

    async def do(request):
        weights.append(admission.inside)
        raise VLLMValidationError("enough")

    ask(front(do, admission=admission), body={**GOOD, "prompt": ["a", "b"], "n": 3})
    assert (weights, admission.inside) == ([6], 0)


def tokenized(prompt_tokens=50, most=16, beams=False):
    """A ``do`` that calls the engine as vLLM's serving objects do, with so long a prompt; for beams without a priority."""
    calls = []

    class Answering(Client):
        async def generate(self, prompt, params, request_id, **options):
            calls.append(options)
            yield output("a", "length")

    async def do(request):
        options = {} if beams else {"priority": request.priority}
        params = SamplingParams(max_tokens=most)
        stream = Engine(Answering()).generate({"prompt_token_ids": [7] * prompt_tokens}, params, "r", **options)
        async for _ in stream:
            raise VLLMValidationError("got in")

    return do, calls


def test_a_prompt_that_is_longer_than_it_looked_is_refused_before_the_engine_hears_of_it():
    admission = Admission(None, 8, tokens=100)
    admission.enter(Asked(output_tokens=50))
    do, calls = tokenized(prompt_tokens=40)
    answer = ask(front(do, admission=admission))
    assert answer[0] == 429
    assert "tokens, this one 40 more, and it takes 100" in error_of(answer)
    assert (calls, admission.tokens_inside) == ([], 50)
    assert ask(front(tokenized(prompt_tokens=30)[0], admission=admission))[0] == 400, "got in"
    answer = ask(front(tokenized(40)[0], Peers(), admission), headers={ATTEMPT_HEADER: "a"})
    assert answer[0] == ELSEWHERE_STATUS


def test_beams_which_vllm_gives_no_priority_have_that_of_their_request():
    do, calls = tokenized(beams=True)
    ask(front(do, queueing=Queueing(by_priority=True)), body={**GOOD, "priority": 5})
    assert calls == [{"priority": 5}]


@pytest.mark.parametrize(("by_priority", "wanted"), [(True, 5), (False, 0)])
def test_the_engine_hears_of_priorities_only_where_it_goes_by_them(by_priority, wanted):
    do, calls = tokenized()
    ask(front(do, queueing=Queueing(by_priority=by_priority)), body={**GOOD, "priority": 5})
    assert calls == [{"priority": wanted}]


def test_a_lower_class_is_refused_where_another_gets_in():
    admission = Admission(4, 8)
    admission.enter(Asked(prompts=2))
    app = front(tokenized()[0], admission=admission)
    assert ask(app, body={**GOOD, "priority": 1})[0] == 429
    assert ask(app, headers={"x-vllm-priority": "1"})[0] == 429
    assert ask(app)[0] == 400, "got in"
    admission.enter(Asked(prompts=2))
    assert ask(app)[0] == 429
    assert ask(app, body={**GOOD, "vllm_xargs": {"precision": "fp16"}})[0] == 400, "pinned requests are high"


def test_a_key_says_the_class_of_its_requests_and_none_gets_a_better_one(tmp_path):
    secrets = {"usual": {}, "night": {"priority": "batch"}}
    entries = [{"name": n, "sha256": hashlib.sha256(n.encode()).hexdigest(), **more} for n, more in secrets.items()]
    (tmp_path / "keys.yaml").write_text(json.dumps({"keys": entries}))
    admission = Admission(4, 8)
    admission.enter(Asked(prompts=2))
    app = front(tokenized()[0], admission=admission, keys=Keys(tmp_path / "keys.yaml"))
    statuses = {name: ask(app, headers={"authorization": f"Bearer {name}"})[0] for name in secrets}
    assert statuses == {"usual": 400, "night": 429}
    answer = ask(app, headers={"authorization": "Bearer usual"}, body={**GOOD, "priority": -1})
    assert (answer[0], "of the class high" in error_of(answer)) == (403, True)


def queued():
    """A replica whose engine takes ten seconds before it begins another request."""
    clock = HandClock()
    admission = Admission(None, 1, clock=clock)
    places = [admission.enter() for _ in range(10)]
    for _ in range(20):
        clock.now_s += 1.0
        places.pop().leave(completion_tokens=1)
        places.append(admission.enter())
    return admission


def test_a_request_that_cannot_be_begun_in_time_is_refused_at_once_and_not_held_against_the_service():
    meter = PathMeter()
    app = front(failing(AssertionError("was let in")), admission=queued(), meter=meter)
    answer = ask(app, headers={"x-nestedfp-queue-deadline-s": "2"})
    assert answer[0] == 503
    assert "in about 9.7 s, its queue deadline ends in 2.0 s" in error_of(answer)
    assert answer[1]["retry-after"] == "9", "after that 0.8 * 2 s would do"
    text = str(list(meter.requests.collect()))
    assert "'outcome': 'refused'}, value=1.0" in text
    assert "'outcome': 'failed'}, value=1.0" not in text
    app = front(failing(AssertionError("was let in")), Peers(), queued())
    headers = {"x-nestedfp-queue-deadline-s": "2", ATTEMPT_HEADER: "a"}
    assert [ask(app, headers=headers)[0] for _ in range(2)] == [ELSEWHERE_STATUS, 503]


def test_the_configured_deadline_holds_for_those_that_say_nothing_and_a_request_may_wait_longer():
    app = front(failing(VLLMValidationError("got in")), admission=queued(), queueing=Queueing(deadline_s=2.0))
    assert ask(app)[0] == 503
    assert ask(app, headers={"x-nestedfp-queue-deadline-s": "60"})[0] == 400, "got in"
    assert ask(front(failing(VLLMValidationError("got in")), admission=queued()))[0] == 400, "no deadline"


class Waiting:
    """An engine's queue, in which a request waits for ever; what is taken out of it ends its stream as vLLM does."""

    def __init__(self):
        self.abort_of = None

    async def not_begun(self, counts):
        return ["r"]

    async def abort(self, ids):
        aborted = output("", "abort")
        aborted.outputs[0].token_ids = []
        self.abort_of(aborted)


@pytest.mark.parametrize("plain", [True, False])
def test_a_request_that_waits_beyond_its_deadline_gets_503_and_no_token_and_uses_no_quota(plain, tmp_path):
    keys, used = quota(tmp_path)
    admission, queue, collector = Admission(None, 8), Waiting(), RequestOutputCollector(RequestOutputKind.DELTA, "r")
    queue.abort_of = collector.put

    class Endless(Client):
        async def add_request(self, *args, **options):
            return collector

        async def generate(self, prompt, params, request_id, **options):
            yield await collector.get()

    async def do(request):
        stream = Engine(Endless()).generate({"prompt_token_ids": [7] * 50}, SamplingParams(), "r")
        if plain:
            return Handover(TURN.get().calls[0], Frame.make("id", 1, "m", chat=False, include_usage=False))
        async for _ in stream:
            raise AssertionError("an output was passed on")

    app = front(do, admission=admission, keys=keys, queueing=Queueing(deadline_s=0.05, queue=queue))
    answer = ask(app, body={**GOOD, "stream": plain}, headers={"authorization": "Bearer secret"})
    assert answer[0] == 503
    assert "did not begin this request before its queue deadline" in error_of(answer)
    assert int(answer[1]["retry-after"]) > 0
    assert (admission.inside, used()) == (0, 0)
    assert admission.refusals["late", "normal"] == 1


@pytest.mark.parametrize(
    ("pin", "fp16_elsewhere", "status"), [("fp16", True, ELSEWHERE_STATUS), ("fp16", False, 400), ("auto", True, 400)]
)
def test_a_pinned_request_goes_to_a_replica_that_runs_fp16(pin, fp16_elsewhere, status):
    app = front(failing(VLLMValidationError("got in")), Peers(True, fp16_elsewhere))
    headers = {ATTEMPT_HEADER: "a", "x-nestedfp-precision": pin}
    assert ask(app, headers=headers)[0] == status
    assert ask(app, headers=headers)[0] == 400, "at second sight it is taken: an FP8 replica runs its steps in FP16"


def test_who_was_sent_on_is_remembered_and_the_memory_is_bounded():
    elsewhere = Elsewhere(capacity=3)

    def go(name, size=10):
        return elsewhere.may_go({ATTEMPT_HEADER.encode(): name}, size)

    assert [go(b"a"), go(b"a"), go(b"b"), go(b"c"), go(b"d")] == [True, False, True, True, True]
    assert go(b"a") is True, "forgotten"
    assert go(b"d") is False
    assert elsewhere.may_go({}, 10) is False, "no HAProxy in front"
    assert go(b"e", RETRYABLE_BODY_BYTES + 1) is False, "HAProxy no longer has the body"
    assert isinstance(elsewhere._seen.popitem()[0], bytes)


def test_the_meter_counts_a_request_once_however_it_ends():
    meter = PathMeter()
    app = front(failing(VLLMValidationError("no")), meter=meter)
    for _ in range(3):
        ask(app)
    assert SimpleNamespace(**vars(meter.stats(0.0))).in_path == 0
    assert meter.take_finished() == []
