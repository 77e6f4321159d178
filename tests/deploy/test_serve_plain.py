"""A service with a plain engine (``quantization: none``): no request ends it."""

import httpx
import pytest
from live_service import children, complete, demo_config, serve

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
