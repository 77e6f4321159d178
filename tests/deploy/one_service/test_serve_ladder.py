"""The service under more load than it holds: FP8, then refusals, then a third replica, and all of it undone."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from keyed_service import KeyedService, client_of
from live_service import MODEL, complete, wait_until

pytestmark = pytest.mark.serve

CLIENTS = 12
# No queue may last: on two cores two sequences a replica and objectives of a few milliseconds make one at once.
LADDER: dict[str, Any] = {
    "slo": {"ttft_ms": 20, "tpot_ms": 20},
    "policy": {
        "name": "threshold",
        "wait_ratio": {"enter": 1.0, "leave": 0.5},
        "leave_after_s": 2,
    },
    "ladder": {
        "shed": True,
        "scale": True,
        "min_replicas": 2,
        "max_replicas": 3,
        "shed_after_s": 1,
        "shed_every_s": 0.5,
        "shed_factor": 0.5,
        "min_admission_scale": 0.25,
        "recover_after_s": 1,
        "scale_after_s": 3,
        "scale_down_after_s": 3600,  # shortened once the third replica has started, however long that took
    },
}


@pytest.fixture
def client(service: KeyedService) -> Iterator[httpx.Client]:
    with client_of("admin") as client:
        yield client


@contextmanager
def crowd(clients: int) -> Iterator[list[httpx.Response]]:
    """Clients that ask again as soon as they are answered; the answers so far."""
    answers: list[httpx.Response] = []
    stop = threading.Event()

    def ask(number: int) -> None:
        with client_of("user") as own:
            for turn in itertools.count():
                if stop.is_set():
                    return
                prompt = f"The {number}th king of {turn}"
                request = {"model": MODEL, "prompt": prompt, "max_tokens": 40, "ignore_eos": True}
                answers.append(own.post("/v1/completions", json=request))
                if answers[-1].status_code != 200:
                    stop.wait(1.0)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)


def status(client: httpx.Client) -> dict[str, Any]:
    response = client.get("/status")
    return response.json() if response.status_code == 200 else {"replicas": [], "rung": "?"}


def ready(seen: dict[str, Any]) -> int:
    """How many replicas serve, without those that have left, which the controller remembers for a while."""
    return sum(r["ready"] and not r["stale"] for r in seen["replicas"])


def test_overload_degrades_then_sheds_then_scales_and_all_of_it_is_undone(
    client: httpx.Client, service: KeyedService
) -> None:
    with service.controlled(**LADDER):
        overload_and_undo(client, service)


def overload_and_undo(client: httpx.Client, service: KeyedService) -> None:
    before = client.get("/decisions").json()[-1:]
    with crowd(CLIENTS) as answers:
        shed = wait_until(lambda: (s := status(client))["rung"] in ("shed", "scale") and s, 180)
        assert shed, status(client)
        assert shed["mode"] == "fp8"
        assert shed["admission_scale"] < 1
        assert wait_until(lambda: [a for a in answers if a.status_code == 429], 120), "somebody is refused"
        assert wait_until(lambda: status(client).get("desired_replicas") == 3, 180), status(client)
    assert wait_until(lambda: ready(status(client)) == 3, 240, 1.0), status(client)
    outcomes = Counter(answer.status_code for answer in answers)
    others = {answer.text[:200] for answer in answers if answer.status_code not in (200, 429)}
    assert set(outcomes) == {200, 429}, (outcomes, others)
    refusal = next(answer for answer in answers if answer.status_code == 429)
    assert int(refusal.headers["Retry-After"]) > 0
    assert "overloaded: this replica computes" in refusal.json()["error"]["message"]
    # Admission that was raised too early in the overload has doubled the pause before each step back, at most 64 times.
    with service.controlled(**LADDER | {"ladder": {**LADDER["ladder"], "scale_down_after_s": 1}}):
        assert wait_until(lambda: status(client)["rung"] in ("none", "degrade"), 240, 1.0), status(client)
        assert wait_until(lambda: status(client).get("desired_replicas", 0) is None, 30), status(client)
        assert wait_until(lambda: ready(status(client)) == 2, 150, 1.0), status(client)
        assert wait_until(lambda: all(r["admission_scale"] == 1 for r in status(client)["replicas"]), 60)
    since = {"since": before[0]["decision_id"]} if before else {}
    said = [each["rung"] for each in before]  # "degrade" already where FP8 was in force
    said += [d["rung"] for d in client.get("/decisions", params=since).json() if d["kind"] == "decision"]
    order = [rung for rung, _ in itertools.groupby(said)]
    assert order.index("degrade") < order.index("shed") < order.index("scale")
    assert complete(client)["usage"]["completion_tokens"] == 8
