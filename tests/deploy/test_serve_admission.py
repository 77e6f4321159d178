"""The service at three times its capacity: who is let in is begun in time, everybody else hears so at once.

The engine's steps are sleeps of a known length, so that its capacity is known and the processor is left to the path; everything
else is the service itself. One service for all tests of this file, the last of which stops it.
"""

import asyncio
import json
import signal
import statistics
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
CAPACITY_PER_S = PLACES / (TOKENS * STEP_S)
DEADLINE_S = 1.0
LOAD_S = 15.0
LEARNED_S = 5.0  # until the service knows how fast its places become free
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


def test_at_three_times_the_capacity_the_admitted_are_begun_in_time_and_the_rest_is_told_at_once(
    service: subprocess.Popen[bytes],
) -> None:
    before = refusals()

    async def load(client: httpx.AsyncClient) -> list[Answer]:
        began_s, asked = time.monotonic(), []

        async def one(at_s: float, stream: bool) -> Answer:
            answer = await ask(client, stream=stream)
            answer.at_s = at_s
            return answer

        for number in range(int(3 * CAPACITY_PER_S * LOAD_S)):
            due_s = number / (3 * CAPACITY_PER_S)
            await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
            asked.append(asyncio.create_task(one(due_s, stream=number % 3 > 0)))
        return await asyncio.gather(*asked)

    answers: list[Answer] = run(load)
    assert {answer.status for answer in answers} == {200, 503}
    settled = [answer for answer in answers if answer.at_s > LEARNED_S]
    served = [answer for answer in settled if answer.status == 200]
    streams = sorted(answer.first_s for answer in served if "data: " in answer.text)
    tpots = sorted((answer.total_s - answer.first_s) / (TOKENS - 1) for answer in served if "data: " in answer.text)
    told = [answer for answer in settled if answer.status == 503]
    early = sorted(answer.total_s for answer in told if "would begin this request in about" in answer.text)
    late = [answer for answer in told if "did not begin this request before" in answer.text]
    since = {key: value - before[key] for key, value in refusals().items() if value > before[key]}
    per_s = len(served) / (LOAD_S - LEARNED_S)
    print(
        f"\ncapacity {CAPACITY_PER_S:g}/s, load {3 * CAPACITY_PER_S:g}/s for {LOAD_S:g} s; from {LEARNED_S:g} s on: served "
        f"{per_s:.2f}/s, TTFT p50 {statistics.median(streams):.3f} max {streams[-1]:.3f} s, "
        f"TPOT p50 {statistics.median(tpots) * 1e3:.1f} p99 {tpots[int(len(tpots) * 0.99)] * 1e3:.1f} ms; "
        f"refused at once {len(early)}, "
        f"p50 {early[len(early) // 2] * 1e3:.1f} p99 {early[int(len(early) * 0.99)] * 1e3:.1f} max {early[-1] * 1e3:.1f} ms; "
        f"late {len(late)}; refusals {since}"
    )
    assert per_s > 0.75 * CAPACITY_PER_S, "the engine is not left idle"
    assert streams[int(len(streams) * 0.95)] < DEADLINE_S + 0.5, "begun in time; a busy machine adds to it"
    assert tpots[int(len(tpots) * 0.95)] < 2 * STEP_S, "those that are refused take no time from those that are served"
    assert len(early) > 10 * len(late), "they are told at once, not when they have waited in vain"
    assert early[len(early) // 2] < 0.2, "50 ms on a machine that does nothing else"
    assert all(0 < int(answer.headers["retry-after"]) <= 60 for answer in told)
    assert set(since) <= {("deadline", "normal"), ("late", "normal")}, since


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
        # That they are long nobody has told: places have become free every eighth of a second so far.
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


def test_lower_classes_are_refused_first_and_large_requests_by_their_tokens(service: subprocess.Popen[bytes]) -> None:
    assert wait_until(empty, 60)
    patient = {"x-nestedfp-queue-deadline-s": "100"}

    async def scenario(client: httpx.AsyncClient) -> tuple[list[Answer], Answer, Answer, Answer]:
        running = await full(client)
        running += [asyncio.create_task(ask(client, patient)) for _ in range(PLACES)]
        await asyncio.sleep(0.5)
        await let_in(2 * PLACES)
        batch = await ask(client, patient, priority=1)  # half of 32 sequences are inside
        large = await ask(client, patient, n=8, prompt="fox " * 900)
        normal = await ask(client, patient)
        return await asyncio.gather(*running), batch, large, normal

    others, batch, large, normal = run(scenario)
    assert batch.status == 429
    assert f"computes {2 * PLACES} sequences and takes {2 * PLACES} at present" in batch.text
    assert large.status == 429
    assert "and it takes 8000 at present" in large.text
    assert [answer.status for answer in (*others, normal)] == [200] * (2 * PLACES + 1)


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
