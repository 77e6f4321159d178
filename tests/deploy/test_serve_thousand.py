"""A thousand streams at once on the shipped demonstration: all come whole, and the service is idle and healthy afterwards."""

import asyncio
import time

import httpx
import pytest
import yaml
from live_service import ADMIN, MODEL, serve, wait_until
from processes import ROOT

from deploy.environment import free_ports

pytestmark = [pytest.mark.serve, pytest.mark.faults]
STREAMS, TOKENS = 1000, 32


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder, (port,) = tmp_path_factory.mktemp("service"), free_ports(1)
    config = yaml.safe_load((ROOT / "deploy" / "configs" / "demo.yaml").read_text())
    with serve(folder, config, port):
        yield f"http://127.0.0.1:{port}"


async def stream(client, number):
    body = {"model": MODEL, "prompt": f"{number} ravens", "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    events = []
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                events.append(line)
    return answer.status_code, len(events), events[-1] if events else ""


def test_a_thousand_streams_at_once_come_whole(url, capsys):
    most = 0

    async def all_of_them():
        nonlocal most
        limits = httpx.Limits(max_connections=STREAMS)
        async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False, limits=limits) as client:
            tasks = [asyncio.create_task(stream(client, number)) for number in range(STREAMS)]
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, headers=ADMIN) as asking:
                while not all(task.done() for task in tasks):
                    (replica,) = (await asking.get("/status")).json()["replicas"]
                    most = max(most, replica["path"]["open_streams"])
                    await asyncio.sleep(0.5)
            return [task.result() for task in tasks]

    began_s = time.monotonic()
    answers = asyncio.run(all_of_them())
    with capsys.disabled():
        print(
            f"\n{STREAMS} streams of {TOKENS} tokens: {time.monotonic() - began_s:.1f} s, {most} in the replica at once at most"
        )
    assert most > 0.9 * STREAMS, "they were there together"
    assert {status for status, _, _ in answers} == {200}
    assert {last for _, _, last in answers} == {"data: [DONE]"}
    assert min(events for _, events, _ in answers) >= 2  # tokens that come together are one event
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:

        def idle():
            (replica,) = client.get("/status", headers=ADMIN).json()["replicas"]
            return replica["running"] == replica["waiting"] == replica["path"]["open_streams"] == 0

        assert wait_until(idle, 30)
        assert client.get("/health").status_code == 200
