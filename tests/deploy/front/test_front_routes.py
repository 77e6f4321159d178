"""The outermost layer of a replica: which routes exist, who answers them, and what every answer tells of its request."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from front_calls import GOOD, ID, LIMIT, PATH, ask, asking, error_of, front, output, stream_of
from vllm.entrypoints.serve.engine.protocol import ModelCard, ModelList

from deploy.front.routes.pages import Shown


@pytest.mark.parametrize("path", ["/v1/models", "/version"])
def test_routes_that_only_tell_are_vllms(path):
    assert ask(front(), path, "GET")[2] == b"vllm:" + path.encode() + b":"


def listing(*ids):
    """An application of vLLM's with the object that lists these models."""

    class Models:
        async def show_available_models(self):
            return ModelList(data=[ModelCard(id=each, max_model_len=1024) for each in ids])

    return SimpleNamespace(state=SimpleNamespace(openai_serving_models=Models()))


@pytest.mark.parametrize("model", ["m", "an organisation/m"])
def test_a_model_is_told_as_the_list_tells_it(model):
    app = front()
    app._app = listing("another", model)
    status, headers, body = ask(app, f"/v1/models/{model}", "GET")
    assert (status, headers["content-type"]) == (200, "application/json")
    told = ModelCard.model_validate_json(body)
    assert (told.id, told.object, told.max_model_len) == (model, "model", 1024)


def test_a_model_that_is_not_in_the_list_is_404():
    app = front()
    app._app = listing("m")
    answer = ask(app, "/v1/models/none", "GET")
    assert answer[0] == 404
    assert "no model 'none'" in error_of(answer)
    assert json.loads(answer[2])["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/metrics",
        "/sleep",
        "/reset_prefix_cache",
        "/collective_rpc",
        "/v1/completions/x",
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
    ("path", "method", "allowed"),
    [(PATH, "GET", "POST"), (f"{PATH}/", "GET", "POST"), ("/v1/models", "POST", "GET, HEAD"), (PATH, "HEAD", "POST")],
)
def test_another_method_gets_405_and_the_ones_that_would_do(path, method, allowed):
    answer = ask(front(), path, method)
    assert (answer[0], answer[1]["allow"]) == (405, allowed)
    assert "takes" in error_of(answer)


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/v1/models/m", "/ready"])
@pytest.mark.parametrize("slashes", ["", "/", "//"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_head_and_a_slash_at_the_end_are_the_same_route(path, slashes, method):
    async def ready():
        return Shown(200, "application/json", b"{}")

    def asked(path, method):
        app = front()
        app._pages["/ready"] = ready
        if path.startswith("/v1/models/m"):
            app._app = listing("m")
        return ask(app, path, method)

    assert asked(path + slashes, method) == asked(path, "GET")
    assert asked(path, "GET")[0] == 200


def test_a_slash_at_the_end_of_a_route_that_generates_is_the_same_route():
    app = front(stream_of(output("a", "length")))
    assert ask(app, f"{PATH}/", body={**GOOD, "stream": True})[0] == 200


def test_a_body_in_chunks_beyond_the_limit_gets_413():
    answer = asyncio.run(asking(front(), PATH, chunks=[b"x" * 600, b"x" * 600]))
    assert answer[0] == 413
    assert f"larger than {LIMIT} bytes" in error_of(answer)


@pytest.mark.parametrize(
    "body", [b'{"error":{"message":"no","type":"not_found_error","code":404}}', b'{"detail":"no"}', b"no", b"[]"]
)
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


def test_requests_are_counted_and_not_those_of_whoever_watches_the_replica():
    async def healthy():
        return Shown(200, "application/json", b"{}")

    app = front()
    app._pages["/health"] = healthy
    for path, method in ((PATH, "POST"), ("/v1/models", "GET"), ("/health", "GET"), ("/none", "GET")):
        ask(app, path, method)
    assert app.asked == 2
