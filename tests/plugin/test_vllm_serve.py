"""A plain ``vllm serve`` with nested weights: control and disclosure through vLLM's own plugin points."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import httpx
import pytest
from live_service import wait_until
from processes import ROOT

pytestmark = [pytest.mark.serve, pytest.mark.filterwarnings("ignore")]

PORT = 8133
MODEL = "models/fairytales-8m"
ARGUMENTS = f"""
    --quantization nestedfp --dtype float16 --enforce-eager --max-model-len 256 --max-num-seqs 8
    --kv-cache-memory-bytes {64 << 20} --host 127.0.0.1 --port {PORT}
"""
KEY = {"Authorization": "Bearer a-key"}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    if not entry_points(group="vllm.endpoint_plugins", name="nestedfp"):
        pytest.fail("the package was installed before it had this plugin: run 'make setup'")
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "key").write_text("a-key\n")
    environment = {
        "VLLM_PLUGINS": "nestedfp",
        "NESTEDFP_ADMIN_KEY_FILE": str(folder / "key"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": str(folder),
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            # What ``vllm serve`` runs; that command itself wants a package of the name vllm, and on a CPU it is vllm-cpu.
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, *ARGUMENTS.split()],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=60, trust_env=False) as client:
                assert wait_until(lambda: up(client) or process.poll() is not None, 600, 1.0)
                assert up(client), (folder / "log").read_text()[-3000:]
                yield client
        finally:
            process.terminate()
            process.wait(60)


def up(client):
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def ask(client, **more):
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True, **more}
    return client.post("/v1/completions", json=body)


def test_answers_disclose_their_precision_and_the_directive_changes_it(client):
    assert ask(client).json()["usage"]["precision_tokens"]["completion"] == {"fp16": 8, "fp8": 0}
    assert client.post("/nestedfp/directive", json={"mode": "fp8"}, headers=KEY).json() == {"mode": "fp8"}
    try:
        assert ask(client).json()["usage"]["precision_tokens"]["completion"] == {"fp16": 0, "fp8": 8}
        pinned = ask(client, vllm_xargs={"precision": "fp16"}).json()
        assert pinned["usage"]["precision_tokens"]["completion"] == {"fp16": 8, "fp8": 0}
    finally:
        client.post("/nestedfp/directive", json={"mode": "fp16"}, headers=KEY)
    assert client.get("/nestedfp/stats").json()["epoch"] >= 2


def test_auto_with_a_rule_is_the_engines_own_choice(client):
    order = {"mode": "auto", "rule": {"fp8_step_tokens": 1}}
    assert client.post("/nestedfp/directive", json=order, headers=KEY).json() == {"mode": "auto"}
    try:
        tokens = ask(client, prompt="Once upon a time there was a dog").json()["usage"]["precision_tokens"]
        assert (tokens["prompt"]["fp16"], tokens["completion"]["fp8"]) == (
            0,
            1,
        )  # the prompt's step, and none of one token
    finally:
        client.post("/nestedfp/directive", json={"mode": "fp16"}, headers=KEY)


def test_a_stream_discloses_in_a_comment_before_its_end(client):
    text = ask(client, stream=True).text
    *_, note, done, _ = text.split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(note.removeprefix(": nestedfp "))["completion"] == {"fp16": 8, "fp8": 0}


def test_a_chat_discloses_too(client):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "ignore_eos": True}
    tokens = client.post("/v1/chat/completions", json=body).json()["usage"]["precision_tokens"]
    assert tokens["completion"] == {"fp16": 4, "fp8": 0}


def test_wrong_pins_and_wrong_orders_are_refused(client):
    assert ask(client, vllm_xargs={"precision": "fp4"}).status_code == 400
    assert ask(client, prompt=[4096]).status_code == 400
    assert client.post("/nestedfp/directive", json={"mode": "fp8"}).status_code == 401
    for wrong in ({"mode": "fp4"}, {"mode": "auto"}, {}, [], 1):
        assert client.post("/nestedfp/directive", json=wrong, headers=KEY).status_code == 400
    assert ask(client).status_code == 200
