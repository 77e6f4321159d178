"""What is not done when a service stops is told so.

The engine's steps are sleeps of a known length, so that its answers are long; everything else is the service itself.
"""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from live_service import MODEL, demo_config, serve

pytestmark = pytest.mark.serve

PORT = 8136
URL = f"http://127.0.0.1:{PORT}"
STEP_S = 0.03
PLACES = 8
ENDLESS = 1000  # tokens: thirty seconds
DRAIN_S = 5.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    config = demo_config() | {"replicas": 1, "controller": {"policy": {"name": "static_fp16"}}}
    config["engine"] |= {
        "max_num_seqs": PLACES,
        "cpu_threads": 1,
        "enable_prefix_caching": False,
        "extra": {"worker_cls": "benchmarks.timed.timed_worker.TimedNestedFPWorker"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIMED_WORKER_STEP_MS", f"{STEP_S * 1e3:g}")
        with serve(tmp_path_factory.mktemp("admission"), config, PORT, http={"drain_s": DRAIN_S}) as process:
            yield process


@dataclass
class Answer:
    """What a client got."""

    status: int
    total_s: float  # from the sending
    headers: httpx.Headers
    text: str


async def ask(client: httpx.AsyncClient, **body: Any) -> Answer:
    asked = {"model": MODEL, "prompt": "A fox", "max_tokens": ENDLESS, "ignore_eos": True, "stream": True, **body}
    began_s = time.monotonic()
    response = await client.post("/v1/completions", json=asked)
    return Answer(response.status_code, time.monotonic() - began_s, response.headers, response.text)


def run(scenario: Callable[[httpx.AsyncClient], Any]) -> Any:
    async def inside() -> Any:
        async with httpx.AsyncClient(base_url=URL, timeout=120, trust_env=False) as client:
            return await scenario(client)

    return asyncio.run(inside())


def test_what_is_not_done_when_the_drain_is_over_is_told_so_and_not_cut_off(service: subprocess.Popen[bytes]) -> None:
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "vLLM's own": {"n": 2}, "whole": {"stream": False}}

    async def scenario(client: httpx.AsyncClient) -> list[Answer]:
        running = [asyncio.create_task(ask(client, **body)) for body in kinds.values()]
        await asyncio.sleep(2.0)
        service.send_signal(signal.SIGTERM)
        return await asyncio.gather(*running)

    plain, own, whole = run(scenario)
    assert service.wait(120) == 0
    reason = "this replica ends, and the time for running requests is over; this request was in it and is given up"
    for answer in (plain, own):
        *begun, last, done, rest = answer.text.split("\n\n")
        assert (answer.status, done, rest) == (200, "data: [DONE]", "")
        assert begun
        assert answer.total_s > DRAIN_S, "it went on for as long as there was time"
        error = json.loads(last.removeprefix("data: "))["error"]
        assert (error["code"], error["message"]) == (503, reason)
        assert error["request_id"] == answer.headers["x-request-id"]
    assert (whole.status, json.loads(whole.text)["error"]["message"]) == (503, reason)
    assert int(whole.headers["retry-after"]) > 0
