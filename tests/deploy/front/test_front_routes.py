"""The outermost layer of a replica: which routes exist, who answers them, and what every answer tells of its request."""

import json

import pytest
import vllm
from front_calls import PATH, ask, error_of, front
from vllm.entrypoints.serve.engine.protocol import ModelCard

from deploy.front.routes.pages import Shown


@pytest.mark.parametrize("model", ["m", "an organisation/m"])
def test_a_model_is_told_as_the_list_tells_it(model):
    listed = json.loads(ask(front(), "/v1/models", "GET")[2])["data"]
    status, headers, body = ask(front(), f"/v1/models/{model}", "GET")
    assert (status, headers["content-type"]) == (200, "application/json")
    told = ModelCard.model_validate_json(body)
    assert (told.id, told.object, told.max_model_len) == (model, "model", 1024)
    assert json.loads(body) in listed


def test_the_version_is_vllms():
    assert json.loads(ask(front(), "/version", "GET")[2]) == {"version": vllm.__version__}


def test_a_model_that_is_not_in_the_list_is_404():
    answer = ask(front(), "/v1/models/none", "GET")
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
        "/v1/completions/x",
        "/v1/responses",
        "/v1/load_lora_adapter",
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
        app.pages["/ready"] = ready
        return ask(app, path, method)

    assert asked(path + slashes, method) == asked(path, "GET")
    assert asked(path, "GET")[0] == 200


def test_requests_are_counted_and_not_those_of_whoever_watches_the_replica():
    async def healthy():
        return Shown(200, "application/json", b"{}")

    app = front()
    app.pages["/health"] = healthy
    for path, method in ((PATH, "POST"), ("/v1/models", "GET"), ("/health", "GET"), ("/none", "GET")):
        ask(app, path, method)
    assert app.asked == 2
