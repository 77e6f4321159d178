"""A service whose places are all taken: who waits in vain hears so in time, and what is not done when it stops is told so.

The engine's steps are sleeps of a known length, so that its capacity is known and the processor is left to the path; everything
else is the service itself. One service for all tests of this file, the last of which stops it.
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
from live_service import MODEL, demo_config, serve, wait_until

pytestmark = pytest.mark.serve

PORT = 8136
URL = f"http://127.0.0.1:{PORT}"
STEP_S = 0.02
PLACES = 8
TOKENS = 50  # of an answer
DEADLINE_S = 1.0
LONG = 300  # tokens: six seconds
ENDLESS = 1000  # tokens: twenty seconds
DRAIN_S = 5.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    config = demo_config() | {"replicas": 1, "controller": {"policy": {"name": "static_fp16"}}}
    config["engine"] |= {
        "max_num_seqs": PLACES,
        "cpu_threads": 1,
        "enable_prefix_caching": False,
        "admission_limit": 4 * PLACES,
        "admission_tokens": 8000,
        "queue_deadline_s": DEADLINE_S,
        "extra": {"worker_cls": "benchmarks.timed.timed_worker.TimedNestedFPWorker"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIMED_WORKER_STEP_MS", f"{STEP_S * 1e3:g}")
        with serve(tmp_path_factory.mktemp("admission"), config, PORT, http={"drain_s": DRAIN_S}) as process:
            yield process


@dataclass
class Answer:
    """What a client got. Times are from the sending."""

    status: int
    first_s: float  # to the first byte of the answer's body
    total_s: float
    headers: httpx.Headers
    text: str
    at_s: float = 0.0  # of the sending, from the start of the load


async def ask(client: httpx.AsyncClient, headers: dict[str, str] | None = None, **body: Any) -> Answer:
    asked = {"model": MODEL, "prompt": "A fox", "max_tokens": TOKENS, "ignore_eos": True, "stream": True, **body}
    began_s, first_s, text = time.monotonic(), 0.0, ""
    async with client.stream("POST", "/v1/completions", json=asked, headers=headers) as response:
        async for part in response.aiter_text():
            first_s = first_s or time.monotonic() - began_s
            text += part
    return Answer(response.status_code, first_s, time.monotonic() - began_s, response.headers, text)


def run(scenario: Callable[[httpx.AsyncClient], Any]) -> Any:
    async def inside() -> Any:
        limits = httpx.Limits(max_connections=500, max_keepalive_connections=100)
        async with httpx.AsyncClient(base_url=URL, timeout=120, trust_env=False, limits=limits) as client:
            return await scenario(client)

    return asyncio.run(inside())


def refusals() -> dict[tuple[str, str], float]:
    """Refusals so far by reason and class, from the page of metrics."""
    found = {}
    for line in httpx.get(f"{URL}/metrics", trust_env=False).text.splitlines():
        if line.startswith("nestedfp_admission_refused_total{"):
            labels = dict(pair.split("=", 1) for pair in line.partition("{")[2].partition("}")[0].split(","))
            found[labels["reason"].strip('"'), labels["priority"].strip('"')] = float(line.rsplit(" ", 1)[1])
    return found


def inside(sequences: float) -> bool:
    """Whether the replica has let in so many sequences that have not left yet."""
    page = httpx.get(f"{URL}/metrics", timeout=30, trust_env=False).text
    found = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith("nestedfp_admission_sequences{")]
    return bool(found) and float(found[0]) == sequences


def empty() -> bool:
    return inside(0)


async def let_in(sequences: int) -> None:
    """Wait until so many are inside."""
    assert await asyncio.to_thread(wait_until, lambda: inside(sequences), 5, 0.05), f"not {sequences} sequences inside"


async def full(client: httpx.AsyncClient) -> list[asyncio.Task[Answer]]:
    """All places of the engine taken by long answers."""
    tasks = [asyncio.create_task(ask(client, max_tokens=LONG)) for _ in range(PLACES)]
    await asyncio.sleep(1.0)
    await let_in(PLACES)
    return tasks


# Streamed and not, of vLLM's own generators, several at once.
WAITING: dict[str, dict[str, Any]] = {
    "streamed": {},
    "whole": {"stream": False},
    "two samples": {"n": 2},
    "two samples, whole": {"n": 2, "stream": False},
    "two prompts": {"prompt": ["a", "b"]},
}


@dataclass
class Vain:
    """Requests that waited together for places that none of them got."""

    waited: dict[str, Answer]
    others: list[Answer]  # who had the places
    refused: dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def vain(service: subprocess.Popen[bytes]) -> Vain:
    assert wait_until(empty, 60)
    before = refusals()

    async def scenario(client: httpx.AsyncClient) -> tuple[list[Answer], list[Answer]]:
        running = await full(client)
        patience = {"x-nestedfp-queue-deadline-s": "2"}
        waiting = await asyncio.gather(*(ask(client, patience, **body) for body in WAITING.values()))
        return waiting, await asyncio.gather(*running)

    waited, others = run(scenario)
    refused = {key: value - before.get(key, 0.0) for key, value in refusals().items()}
    return Vain(dict(zip(WAITING, waited, strict=True)), others, refused)


@pytest.mark.parametrize("kind", WAITING)
def test_a_request_that_waits_in_vain_gets_503_when_its_deadline_is_up_and_no_token(vain: Vain, kind: str) -> None:
    waited = vain.waited[kind]
    assert (waited.status, "data: " in waited.text) == (503, False), waited.text
    assert "did not begin this request before its queue deadline" in waited.text
    assert 1.9 < waited.total_s < 6


def test_those_that_wait_in_vain_are_counted_and_hurt_nobody_who_has_a_place(vain: Vain) -> None:
    assert [answer.status for answer in vain.others] == [200] * PLACES
    assert {key: count for key, count in vain.refused.items() if count} == {("late", "normal"): len(WAITING)}
    assert wait_until(empty, 30), "nothing stays behind"


def test_what_is_not_done_when_the_drain_is_over_is_told_so_and_not_cut_off(service: subprocess.Popen[bytes]) -> None:
    assert wait_until(empty, 60)
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "vLLM's own": {"n": 2}, "whole": {"stream": False}}

    async def scenario(client: httpx.AsyncClient) -> list[Answer]:
        running = [asyncio.create_task(ask(client, max_tokens=ENDLESS, **body)) for body in kinds.values()]
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
