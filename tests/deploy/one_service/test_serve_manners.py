"""Headers that Ray Serve would take orders from, at HAProxy and at a replica's own port."""

import json
import time

import httpx
import psutil
import pytest
from keyed_service import PORT, SECRETS, URL
from live_service import MODEL, wait_until

pytestmark = pytest.mark.serve


@pytest.fixture(scope="module")
def replica_url(service):
    """Where a replica's own server listens."""
    processes = [psutil.Process(service.process.pid), *psutil.Process(service.process.pid).children(recursive=True)]
    found = []
    for process in processes:
        if "NestedFPServer" not in " ".join(process.cmdline()):
            continue
        for each in process.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port != PORT:
                url = f"http://127.0.0.1:{each.laddr.port}"
                try:
                    answer = httpx.get(f"{url}/ready", timeout=2, trust_env=False)
                except httpx.HTTPError:
                    continue
                if answer.headers.get("content-type") == "application/json" and "replica" in answer.text:
                    found.append(url)
    assert found
    return found[0]


@pytest.mark.parametrize("at", ["HAProxy", "the replica"])
def test_no_header_keeps_a_request_whose_client_has_left_or_ends_one_early(service, replica_url, at):
    url = URL if at == "HAProxy" else replica_url
    headers = {
        "Authorization": f"Bearer {SECRETS['user']}",
        "X-Request-Disconnect-Disabled": "?1",
        "X-Request-Timeout-Seconds": "0.001",
        "Serve-Multiplexed-Model-Id": "other",
    }
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 16}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    name = f"leaves-{at.replace(' ', '-')}-{time.time_ns()}"
    body |= {"max_tokens": 900, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{url}/v1/completions", json=body, headers={**headers, "X-Request-Id": name}, trust_env=False, timeout=0.3
        )

    def left():
        lines = [json.loads(line) for path in service.access_logs for line in path.read_text().splitlines()]
        return [line["outcome"] for line in lines if line["id"] == name]

    assert wait_until(left, 10, 0.05)
    assert left() == ["left"]
