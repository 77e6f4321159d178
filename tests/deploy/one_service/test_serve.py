"""The whole service, two replicas, over HTTP: answers, disclosure, directives, refusals, and what happens when parts die."""

import re
import threading

import pytest
import yaml
from keyed_service import SECRETS, URL, client_of
from live_service import MODEL, children, complete, wait_until
from openai import OpenAI

pytestmark = pytest.mark.serve


@pytest.fixture
def client(service):
    with client_of("admin") as client:
        yield client


@pytest.fixture
def openai(service):
    with OpenAI(base_url=f"{URL}/v1", api_key=SECRETS["user"], max_retries=0, timeout=120) as client:
        yield client


def direct(client, mode, **more):
    """The status once every replica has acknowledged: the answer waits a second for that, and two busy cores may need more."""
    response = client.post("/admin/directive", json={"mode": mode, **more})
    assert response.status_code == 200, response.text
    return acknowledged(response) or wait_until(lambda: acknowledged(client.get("/status")), 30) or response.json()


def acknowledged(response):
    """The status, if every replica in it has acknowledged what is in force."""
    status = response.json() if response.status_code == 200 else {"replicas": []}
    return status if status["replicas"] and all(replica["acked"] for replica in status["replicas"]) else None


def counts_add_up(usage, samples=1):
    tokens = usage["precision_tokens"]
    prompt = tokens["prompt"]
    return (
        prompt["fp16"] + prompt["fp8"] + sum(prompt["cached"].values()) == samples * usage["prompt_tokens"]
        and sum(tokens["completion"].values()) == usage["completion_tokens"]
    )


# -- answers -----------------------------------------------------------------------------------------------------------


def test_the_model_is_listed_and_a_completion_and_a_chat_answer_with_words(openai):
    assert next(iter(openai.models.list())).id == MODEL
    text = openai.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=24).choices[0].text
    assert len(re.findall(r"[a-z]+", text)) > 8
    chat = openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Tell me of a fox."}], max_tokens=24
    )
    assert re.search(r"[A-Za-z]{3}", chat.choices[0].message.content)
    assert counts_add_up(chat.model_dump()["usage"])


def test_a_stream_brings_tokens_one_by_one_and_discloses_at_the_end(openai):
    chunks = list(openai.completions.create(model=MODEL, prompt="There was a", max_tokens=12, stream=True))
    assert len([chunk for chunk in chunks if chunk.choices[0].text]) >= 8
    usage = chunks[-1].model_dump()["usage"]
    assert usage["completion_tokens"] == 12
    assert counts_add_up(usage)
    asked = list(
        openai.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "A king"}],
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert asked[-1].choices == []
    assert counts_add_up(asked[-1].model_dump()["usage"])
    assert all(chunk.usage is None for chunk in asked[:-1])


# -- directives --------------------------------------------------------------------------------------------------------


def test_one_directive_switches_both_replicas(client):
    for mode in ("fp8", "fp16", "fp8"):
        status = direct(client, mode)
        assert status["mode"] == mode
        assert len(status["replicas"]) == 2
        assert all(replica["acked"] and replica["directive"] == mode for replica in status["replicas"])
    before = {r["id"]: r["tokens_fp8"] for r in client.get("/status").json()["replicas"]}
    threads = [threading.Thread(target=complete, args=(client, f"{i} men")) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: all(r["tokens_fp8"] > before[r["id"]] for r in client.get("/status").json()["replicas"]), 30)
    after = client.get("/status").json()["replicas"]
    assert all(r["tokens_fp8"] > before[r["id"]] for r in after), "both replicas served in FP8"


def test_a_pinned_request_stays_exact_under_fp8(client):
    direct(client, "fp16")
    exact = complete(client, max_tokens=32, temperature=0)
    direct(client, "fp8")
    for pinned in (
        complete(client, max_tokens=32, temperature=0, vllm_xargs={"precision": "fp16"}),
        client.post(
            "/v1/completions",
            json={"model": MODEL, "prompt": "Once upon a time", "max_tokens": 32, "temperature": 0},
            headers={"x-nestedfp-precision": "fp16"},
        ).json(),
    ):
        assert pinned["choices"][0]["text"] == exact["choices"][0]["text"]
        tokens = pinned["usage"]["precision_tokens"]
        assert tokens["prompt"]["fp8"] == tokens["completion"]["fp8"] == 0
    assert complete(client)["usage"]["precision_tokens"]["completion"]["fp8"] == 8


def test_decisions_are_told_and_logged(client):
    for mode in ("fp8", "fp16"):
        direct(client, mode)
    decisions = client.get("/decisions").json()
    assert {"fp8", "fp16"} <= {d.get("to_mode") for d in decisions}
    assert all(d["reason"] for d in decisions)
    latest = decisions[-1]["decision_id"]
    later = client.get("/decisions", params={"since": latest - 1}).json()
    assert later[0]["decision_id"] == latest
    assert client.get("/decisions", params={"since": "yesterday"}).status_code == 400
    direct(client, "auto")
    assert client.get("/status").json()["override"] is None


def test_the_status_counts_what_was_judged_and_how_long_directives_took(client):
    for mode in ("fp8", "fp16", "fp8", "auto"):
        status = direct(client, mode)
    assert status["broadcasts"]["count"] > 3
    assert 0 < status["broadcasts"]["p50_ms"] <= status["broadcasts"]["p99_ms"]


def test_the_configuration_is_taken_up_again_without_a_restart(client, service):
    loads = client.get("/status").json()["config_loads"]
    with service.controlled(policy={"name": "static_fp8"}):
        status = client.get("/status").json()
        assert (status["policy"], status["mode"]) == ("static_fp8", "fp8")
        good = service.config.read_text()
        service.config.write_text(yaml.safe_dump({**yaml.safe_load(good), "controller": {"polcy": {}}}))
        response = client.post("/admin/reload")
        assert (response.status_code, "controller.polcy: unknown key" in response.text) == (400, True)
        assert client.get("/status").json()["policy"] == "static_fp8"
    assert client.get("/status").json()["config_loads"] == loads + 2


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_killed_controller_comes_back_above_the_old_epoch_under_what_it_had_reloaded(client, service):
    with service.controlled(policy={"name": "static_fp8"}):
        direct(client, "fp8")
        epoch = client.get("/status").json()["epoch"]
        (controller,) = children(service.process, r"ray::ControllerActor")
        controller.kill()
        assert complete(client)["usage"]["completion_tokens"] == 8, "serving does not need the controller"

        def back():
            status = acknowledged(client.get("/status"))
            return status if status and len(status["replicas"]) == 2 else None

        status = wait_until(back, 60)
        assert status["epoch"] >= epoch
        assert status["policy"] == "static_fp8", "not the one that the service was started with"
    assert wait_until(lambda: all(r["acked"] for r in client.get("/status").json()["replicas"]), 60), (
        "they call the new one"
    )
    assert all(r["acked"] for r in direct(client, "fp16")["replicas"])
    direct(client, "auto")


def test_no_process_is_there_to_report_usage(service):
    assert children(service.process, "ServeReplica")
    assert not children(service.process, "Telemetry")
