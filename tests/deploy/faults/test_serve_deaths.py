"""The whole service broken: its processes killed and stopped under load, and its own stop, which leaves nothing behind.

The tests run in the order in which they stand: the last one stops the service.
"""

import contextlib
import math
import os
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest
from fault_service import URL, gone, settled, status
from live_service import ADMIN, MODEL, wait_until
from steady_load import KINDS, SteadyLoad

from deploy.startup import leftovers

pytestmark = [pytest.mark.serve, pytest.mark.faults]

PER_S = 2.0
GCS_STOPPED_S = 10.0  # after which it goes on; everything else that stands still is ended by the service
# By then a dead engine has been noticed: what was in it has heard so, and nothing else goes to it.
NOTICED_S = 15.0
CONTROLLER, CONTROL_ROUTES = r"^ray::ControllerActor", r"^ray::ServeReplica:nestedfp-control"
HAPROXY, MANAGER = r"/haproxy -db", r"^ray::HAProxyManager"
SERVE, GCS = r"^ray::ServeController", r"/gcs_server "
ENGINE, REPLICA = r"VLLM::EngineCor", r"^ray::.*ServeReplica:nestedfp:NestedFPServer"
FAULTS = {
    "controller killed": (CONTROLLER, signal.SIGKILL),
    "controller stopped": (CONTROLLER, signal.SIGSTOP),
    "control routes killed": (CONTROL_ROUTES, signal.SIGKILL),
    "control routes stopped": (CONTROL_ROUTES, signal.SIGSTOP),
    "HAProxy killed": (HAPROXY, signal.SIGKILL),
    "HAProxy stopped": (HAPROXY, signal.SIGSTOP),
    "HAProxy's manager killed": (MANAGER, signal.SIGKILL),
    "Serve's controller killed": (SERVE, signal.SIGKILL),
    f"GCS stopped for {GCS_STOPPED_S:g} s": (GCS, signal.SIGSTOP),
    "engine killed": (ENGINE, signal.SIGKILL),
    "engine stopped": (ENGINE, signal.SIGSTOP),
    "replica killed": (REPLICA, signal.SIGKILL),
    "replica stopped": (REPLICA, signal.SIGSTOP),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_of_what_dies_or_stands_still_no_request_hangs_and_none_looks_whole_that_is_not(client, service, capsys, fault):
    part, number = FAULTS[fault]
    settled(client)
    for mode in ("fp8", "auto"):
        epoch = client.post("/admin/directive", json={"mode": mode}, headers=ADMIN).json()["epoch"]
    service.look()
    logs, replicas, before = service.log_sizes(), set(service.replicas()), service.children(part)
    one_of_two = part in (ENGINE, REPLICA)
    assert len(before) == 2 if one_of_two else before
    victims = before[: 1 if one_of_two else None]
    engines = [
        each for victim in victims for each in victim.children(recursive=True) if each.name() == "VLLM::EngineCor"
    ]
    with SteadyLoad([URL], PER_S) as load:
        assert wait_until(lambda: len(load.answers) >= 8, 60)
        assert wait_until(lambda: all(r["running"] for r in status(client)["replicas"]), 60, 0.02), "both have some"
        began_s = time.monotonic()
        for each in victims:
            each.send_signal(number)
        if part == GCS:
            time.sleep(GCS_STOPPED_S)
            for each in victims:
                each.resume()
        else:
            assert wait_until(lambda: all(map(gone, victims)), 50), "Serve would let it finish its requests until then"
            assert wait_until(lambda: all(map(gone, engines)), 20), "one would keep its memory, and a GPU's"
            assert wait_until(lambda: len(set(service.children(part)) - set(victims)) >= len(before), 300, 1.0)
        settled(client)
        took_s = time.monotonic() - began_s
        since = len(load.answers)
        assert wait_until(lambda: len(load.answers) >= since + 20, 120)
    met, failed = load.in_flight_at(began_s), [each for each in load.answers if each.end != "ok"]
    with capsys.disabled():
        print(f"\n| {fault} | {took_s:.0f} | {len(failed)} of {len(load.answers)} ({len(met)}) |")
    assert not [each for each in failed if not each.end.startswith("failed")], "one hung, or looked whole and was not"
    assert not [each for each in failed if each.end.startswith("failed 500")]
    assert part in (HAPROXY, MANAGER, ENGINE, REPLICA) or not failed, load.ends()
    if one_of_two:
        # The other replica's may have ended just before.
        assert len(met) == 1 or any(each.end == "ok" for each in met), "the other replica's go on"
    else:
        assert set(service.replicas()) == replicas
    if part == ENGINE:
        assert all(each.ended_s < began_s + NOTICED_S for each in failed), failed
        assert not service.tracebacks(logs)
    if part == CONTROLLER:
        assert len(service.children(part)) == 1
        assert status(client)["epoch"] > epoch, "the successor goes on above"


def test_the_control_routes_answer_when_no_replica_is_up(client, service):
    settled(client)
    service.look()
    for process in service.replicas():
        process.kill()

    def unavailable():
        with contextlib.suppress(httpx.RemoteProtocolError):  # a connection kept open to one of them
            return client.post("/v1/completions", json={}).status_code == 503
        return False

    assert wait_until(unavailable, 10, 0.05)
    response = client.post("/v1/completions", json={"model": MODEL, "prompt": "x"})
    if response.status_code == 503:  # else a replica is back already
        assert int(response.headers["Retry-After"]) > 0
        assert "try again" in response.json()["error"]["message"]
    for path in ("/status", "/decisions"):
        assert client.get(path).status_code == 200
    settled(client)


def test_a_signal_to_the_whole_process_group_stops_it_in_order_and_nothing_is_left(client, service, capsys):
    settled(client)
    service.look()
    with SteadyLoad([URL], PER_S, KINDS[:2]) as load:  # short ones: longer than drain_s the stop waits for none
        assert wait_until(lambda: len(load.answers) >= 20, 60)
        began_s = time.monotonic()
        os.killpg(service.process.pid, signal.SIGTERM)
        assert service.process.wait(120) == 0
        took_s = time.monotonic() - began_s
    met = load.in_flight_at(began_s)
    with capsys.disabled():
        print(f"\nstopped after {took_s:.1f} s, with {len(met)} requests in flight; {load.ends()}")
    assert met
    assert {each.end for each in met} == {"ok"}, "the stop waits for streams"
    ends = {each.end.partition(":")[0].partition("(")[0] for each in load.answers} - {"ok"}
    broken = {f"failed {error}" for error in ("ConnectError", "ReadError", "RemoteProtocolError")}
    assert ends <= broken | {"failed 503"}, "503 with a sentence, not 404"
    assert "failed 503" in ends, "while the streams end, others hear that the service stops"
    _, alive = psutil.wait_procs(service.family, timeout=10)
    assert not alive, f"left running: {alive}"
    assert not [name for name in service.memory if (leftovers.SHARED_MEMORY / name).exists()]
    assert not service.folder.exists()
    # A service that was killed hours ago may have left a session, and its number may be one of this one's by now.
    began_s = {process.pid: process.create_time() for process in service.family}
    sessions = [(path, int(path.name.rpartition("_")[2])) for path in Path("/tmp/ray").glob("session_2*")]
    assert not [path for path, pid in sessions if path.stat().st_mtime > began_s.get(pid, math.inf)]
