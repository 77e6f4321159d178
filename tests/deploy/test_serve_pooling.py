"""The service with a model of vectors, from the socket: routes, disclosure, pins, directives, and what is refused."""

import json

import httpx
import openai
import pytest
import yaml
from live_service import ADMIN, serve
from processes import ROOT

from deploy.environment import free_ports

pytestmark = [pytest.mark.serve, pytest.mark.faults]
MODEL = "tales"
TEXTS = ["Once upon a time", "The king and the fox"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder, (port,) = tmp_path_factory.mktemp("service"), free_ports(1)
    config = yaml.safe_load((ROOT / "deploy" / "configs" / "demo.yaml").read_text())
    config["model"]["id"] = MODEL
    config["engine"]["extra"] = {"runner": "pooling"}
    with serve(folder, config, port):
        assert "/pooling -H" in (folder / "log").read_text(), "what to try next is a route that there is"
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client:
            yield client


def asked(client, path, **body):
    answer = client.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def direct(client, mode):
    assert client.post("/admin/directive", json={"mode": mode}, headers=ADMIN).json()["mode"] == mode


@pytest.mark.parametrize("mode", ["fp8", "fp16"])
def test_embeddings_follow_the_directive_and_a_pinned_one_does_not(client, mode):
    direct(client, mode)
    with openai.OpenAI(base_url=str(client.base_url.join("/v1")), api_key="none") as openais:
        found = openais.embeddings.create(model=MODEL, input=TEXTS)
        pinned = openais.embeddings.create(model=MODEL, input=TEXTS, extra_body={"vllm_xargs": {"precision": "fp16"}})
    assert [len(each.embedding) for each in found.data] == [256, 256]
    assert found.usage.prompt_tokens == found.usage.precision_tokens["prompt"][mode] == found.usage.total_tokens
    assert pinned.usage.prompt_tokens == pinned.usage.precision_tokens["prompt"]["fp16"]
    assert ([each.embedding for each in found.data] == [each.embedding for each in pinned.data]) is (mode == "fp16")


def test_scores_say_which_text_is_near_and_the_precision(client):
    direct(client, "fp8")
    for path in ("/score", "/v1/score"):
        found = asked(client, path, text_1=TEXTS[0], text_2=["Once upon a day", "a b c d"])
        near, far = (each["score"] for each in found["data"])
        assert near > far
        assert found["usage"]["precision_tokens"]["prompt"]["fp8"] > 0
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        found = asked(client, path, query=TEXTS[0], documents=["a b c d", "Once upon a day"], top_n=1)
        assert [each["index"] for each in found["results"]] == [1]
        assert found["usage"]["precision_tokens"]["prompt"]["fp8"] > 0


def test_vectors_of_tokens_come_in_bytes_too(client):
    answer = client.post("/v1/embeddings", json={"model": MODEL, "input": TEXTS, "encoding_format": "bytes_only"})
    assert (answer.status_code, len(answer.content)) == (200, 2 * 256 * 4)
    assert (
        sum(json.loads(answer.headers["x-nestedfp-precision-tokens"])["prompt"].get(mode) for mode in ("fp16", "fp8"))
        > 5
    )
    assert len(asked(client, "/pooling", input=TEXTS)["data"]) == 2


def test_routes_of_text_and_what_the_model_cannot_do_are_not_there(client):
    for path in ("/v1/completions", "/v1/chat/completions", "/classify", "/v2/embed", "/invocations"):
        answer = client.post(path, json={"model": MODEL, "prompt": "x", "input": "x"})
        assert (answer.status_code, "there is no" in answer.text) == (404, True)
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/embeddings", "/pooling", "/score", "/rerank"} <= set(paths)
    assert "/v1/completions" not in paths


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": None},
        {"input": {"a": 1}},
        {"input": []},
        {"input": [[4096]]},
        {"input": [[-1]]},
        {"input": "x" * 20_000},
        {"input": ["\ud800"]},
        {"input": "a", "dimensions": 7},
        {"input": "a", "dimensions": -1},
        {"input": "a", "encoding_format": "zip"},
        {"input": "a", "truncate_prompt_tokens": 10**9},
        {"input": "a", "vllm_xargs": [1]},
        {"input": "a", "vllm_xargs": {"precision": "fp4"}},
        {"messages": None},
        {"messages": []},
        {"messages": [[]]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ]
        },
        {"input": "a", "priority": 10**30},
        {"input": "a", "cache_salt": ""},
        {"input": "a", "mm_processor_kwargs": {"x": 1}, "embed_dtype": "int3"},
    ],
)
def test_nonsense_is_refused_in_one_sentence_and_the_service_lives(client, body):
    content = json.dumps({"model": MODEL, **body})
    answer = client.post("/v1/embeddings", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert "Traceback" not in answer.text
    assert "function-wrap" not in answer.text
    assert client.get("/health").status_code == 200
