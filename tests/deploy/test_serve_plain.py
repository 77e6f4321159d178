"""A service with a plain engine (``quantization: none``): no request ends it, and that it hangs is noticed, as of our own."""

import threading
import time

import httpx
import pytest
from live_service import MODEL, children, complete, demo_config, serve, wait_until

from deploy.startup.accelerator import resolve

pytestmark = [
    pytest.mark.serve,
    pytest.mark.faults,
    pytest.mark.skipif(
        resolve("auto") != "cpu", reason="the seeds are a CPU's, and a GPU's service takes long to start"
    ),
]

PORT = 8137
STEP_TOKENS = 64
LONG = "The youngest brother went out into the wide world to seek his fortune. " * 16


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    config = demo_config()
    config["replicas"] = 1
    config["engine"] = {
        **config["engine"],
        "quantization": "none",
        "max_num_batched_tokens": STEP_TOKENS,
        "enable_prefix_caching": False,
    }
    config.pop("controller", None)
    with serve(tmp_path_factory.mktemp("plain"), config, PORT) as process:
        yield process


@pytest.fixture
def client(service):
    with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=120, trust_env=False) as client:
        yield client


def engine_of(service):
    (engine,) = children(service, r"VLLM::EngineCor")
    return engine


def test_a_request_with_a_seed_and_a_prompt_in_chunks_is_answered_and_gets_the_same_again(client, service):
    engine = engine_of(service)
    first, second = [complete(client, LONG, seed=7, temperature=1.0, max_tokens=24, ignore_eos=True) for _ in range(2)]
    assert first["usage"]["prompt_tokens"] > 3 * STEP_TOKENS, "its prompt takes several steps"
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert complete(client)["usage"]["completion_tokens"] == 8
    assert engine_of(service).pid == engine.pid, "it is the engine of the start"


def test_a_plain_engine_that_hangs_is_noticed_its_request_hears_of_it_and_it_is_replaced(client, service, capsys):
    engine = engine_of(service)
    body = {"model": MODEL, "prompt": "Long ago", "max_tokens": 900, "ignore_eos": True, "stream": True}
    said, heard_s, begun = [], [], threading.Event()

    def read():
        with client.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                said.append(line)
                begun.set()
            heard_s.append(time.monotonic())

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    engine.suspend()
    stopped_s = time.monotonic()
    with httpx.Client(base_url=client.base_url, timeout=30, trust_env=False) as own:
        assert wait_until(lambda: own.get("/health").status_code == 503, 20, 0.1)
        noticed_s = time.monotonic() - stopped_s
        refused = own.post("/v1/completions", json={**body, "stream": False})
        assert refused.status_code == 503
        assert "it hangs" in refused.json()["error"]["message"] or "no replica" in refused.json()["error"]["message"]
        reader.join(30)
        assert not reader.is_alive(), "the stream hangs with its engine"
        assert any('{"error"' in line and "it hangs" in line for line in said)
        assert wait_until(lambda: not engine.is_running(), 60), "it is ended"
        assert wait_until(lambda: own.get("/health").status_code == 200, 600, 1.0), "another one takes its place"
    with capsys.disabled():
        print(
            f"\nhung plain engine: noticed after {noticed_s:.1f} s, its stream heard of it after {heard_s[0] - stopped_s:.1f} s"
        )
    assert noticed_s < 15
    assert heard_s[0] - stopped_s < 15
    assert complete(client)["usage"]["completion_tokens"] == 8
