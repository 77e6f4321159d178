"""Orders to a plain ``vllm serve``: who may give them, and which are refused. The engine is in test_vllm_serve.py."""

import asyncio
from argparse import Namespace
from dataclasses import asdict

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from nestedfp import admin_key
from nestedfp.steps.step_rule import StepRule
from nestedfp.vllm_plugin import frontend
from nestedfp.vllm_plugin.options import USUAL_SLO_MS, slo_rule
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision
from nestedfp.vllm_plugin.serving.endpoints import Endpoints

KEY = {"Authorization": "Bearer a-key"}


class Engine:
    """Remembers the directives that reach it."""

    def __init__(self):
        self.engine_core = self
        self.told = []

    async def call_utility_async(self, name, content):
        assert name == "nestedfp_set_directive"
        self.told.append(content)


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def client(engine, tmp_path, monkeypatch):
    (tmp_path / "key").write_text("a-key\n")
    monkeypatch.setenv(admin_key.KEY_FILE_ENV, str(tmp_path / "key"))
    app, endpoints = FastAPI(), Endpoints()
    endpoints.attach_router(app)
    endpoints._client = engine
    return TestClient(app)


def order(client, body, headers=KEY):
    answer = client.post("/nestedfp/directive", json=body, headers=headers)
    return answer.status_code, answer.json().get("error", {}).get("message", "")


@pytest.mark.parametrize(("servers", "said"), [(None, "exact"), (1, "exact"), (2, "auto")])
def test_beside_another_api_server_a_header_says_no_directive_which_may_be_an_old_one(servers, said):
    endpoints = Endpoints()
    asyncio.run(endpoints.init_state(None, None, Namespace(api_server_count=servers)))
    assert endpoints.decided(None) == said
    assert endpoints.decided(AskedPrecision.FAST) == "fast"


def test_an_order_reaches_the_engine_with_its_rule(client, engine):
    for body in ({"mode": "fp8"}, {"mode": "auto", "slo": {"ttft_ms": 500}}, {"mode": "auto"}):
        assert order(client, body) == (200, "")
    assert [(told["mode"], told["epoch"]) for told in engine.told] == [("fp8", 1), ("auto", 2), ("auto", 3)]
    rules = [slo_rule({"ttft_ms": 500}), slo_rule(USUAL_SLO_MS)]
    assert [told["rule"] for told in engine.told] == [asdict(rule) for rule in (StepRule(), *rules)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"mode": "auto", "rule": {"fp8_budget_fraction": 0.5}}, '"mode": one of'),
        ({"mode": "auto", "slo": {"ttft_ms": "5"}}, "slo: expected milliseconds above 0"),
        ({"mode": "fp8", "slo": {"ttft_ms": 500}}, 'an "slo" with "auto" only'),
        ({"mode": ["fp8"]}, '"mode": one of'),
        ({}, '"mode": one of'),
        (1, '"mode": one of'),
    ],
)
def test_an_order_that_says_nothing_or_the_wrong_thing_is_400_and_reaches_no_engine(client, engine, body, message):
    status, said = order(client, body)
    assert (status, message in said) == (400, True), said
    assert engine.told == []


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer b-key"}, {"Authorization": "Bearer "}])
def test_an_order_without_the_key_is_401(client, engine, headers):
    assert order(client, {"mode": "fp8"}, headers)[0] == 401
    assert engine.told == []


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_where_the_service_has_no_key_nobody_gives_orders(client, engine, tmp_path, content):
    (tmp_path / "key").unlink()
    if content is not None:
        (tmp_path / "key").write_text(content)
    assert order(client, {"mode": "fp8"}, {"Authorization": "Bearer "})[0] == 403
    assert engine.told == []


@pytest.mark.parametrize("path", ["/v1/embeddings", "/score", "/classify"])
def test_an_answer_of_vectors_says_the_precision_of_its_tokens(path):
    app = FastAPI()
    Endpoints().attach_router(app)

    @app.post(path)
    async def made():
        frontend._collecting.get()["r"] = TokenCounts(prompt_fp8=5)
        return {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 5}}

    answer = TestClient(app).post(path).json()
    assert answer["data"] == [{"embedding": [0.5]}]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["precision_tokens"]["prompt"]["fp8"] == 5
    assert answer["usage"]["precision"] == "fast"


@pytest.mark.parametrize("exact", [{"precision": "exact"}, {"vllm_xargs": {"precision": "fp16"}}, {}])
def test_a_search_with_beams_cannot_be_exact(exact):
    app = FastAPI()
    Endpoints().attach_router(app)
    app.add_api_route("/v1/completions", lambda: {"choices": []}, methods=["POST"])
    answer = TestClient(app).post("/v1/completions", json={"prompt": "a", "use_beam_search": True, **exact})
    assert answer.status_code == (400 if exact else 200)
    assert not exact or "use_beam_search cannot be exact" in answer.json()["error"]["message"]
