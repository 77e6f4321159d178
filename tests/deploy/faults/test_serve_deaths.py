"""The whole service broken: its processes killed and stopped under streams and load, and its own stop, which leaves nothing behind.

The tests run in the order in which they stand: the last one stops the service.
"""

import contextlib
import datetime
import json
import math
import os
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest
from fault_load import Load, Streams
from fault_service import Poll, faults, gone, settled, status
from live_service import ADMIN, MODEL, complete, wait_until

from deploy.startup import leftovers

pytestmark = [pytest.mark.serve, pytest.mark.faults]


def under_way(service, replica, wall_s):
    """Ids of the requests that were at a replica at this time, by its access log."""
    (path,) = service.folder.rglob(f"access_{replica}.log")
    found = set()
    for line in path.read_text().splitlines():
        said = json.loads(line)
        ended_s = datetime.datetime.fromisoformat(said["time"]).timestamp()
        if ended_s - said["total_ms"] / 1e3 <= wall_s <= ended_s:
            found.add(said["id"])
    return found


def test_while_an_engine_dies_under_load_only_what_was_in_it_fails_and_nobody_hears_a_500(client, service, capsys):
    settled(client)
    service.look()
    logs = service.log_sizes()
    with Load(8) as load:
        assert wait_until(lambda: load.done() >= 40, 60, 0.01)
        assert wait_until(lambda: all(r["running"] for r in status(client)["replicas"]), 30, 0.01), "both have some"
        service.engines()[0].kill()
        killed_s = time.time()
        done = load.done()
        dead = wait_until(
            lambda: [r["id"] for r in status(client)["replicas"] if "died" in (r["fault"] or "")], 10, 0.05
        )
        assert wait_until(lambda: load.done() >= done + 60, 120)
    in_it = under_way(service, dead[0], killed_s)
    failed = {asked.id: (asked.path, asked.status, asked.end) for asked in load.asked if asked.failed}
    with capsys.disabled():
        print(f"\nengine killed: {len(load.asked)} requests, {len(in_it)} in it, {len(failed)} failed: {failed}")
    assert {asked.status for asked in load.asked} <= {200, 429, 503}
    assert not [asked.end for asked in load.asked if asked.status == 200 and asked.end not in ("whole", "error event")]
    assert set(failed) <= in_it, "what came later went to the other replica"
    assert len(failed) >= 1
    assert not service.tracebacks(logs)
    settled(client)


@pytest.mark.parametrize("victim", ["the replica's process", "its engine core"])
def test_what_dies_in_mid_stream_ends_its_own_streams_and_no_others(client, service, victim):
    settled(client)
    streams = Streams(8)
    engine_core = victim == "its engine core"
    found = service.engines() if engine_core else service.replicas()
    service.look()
    found[0].kill()
    killed_s = time.monotonic()
    if engine_core:
        assert wait_until(lambda: "its engine has died" in faults(client), 5, 0.05), client.get("/status").text
        assert time.monotonic() - killed_s < 5
    while time.monotonic() - killed_s < 1.5:  # some may still meet the dead one
        with contextlib.suppress(httpx.HTTPError):
            client.get("/v1/models")
        time.sleep(0.05)
    for _ in range(12):
        assert complete(client)["usage"]["completion_tokens"] == 8, "1.5 s later no request meets the dead one"
    ends = streams.join()
    assert ends["whole"] >= 1, ends
    assert ends["error event"] + ends["closed"] >= 1, ends
    settled(client)


def test_a_hung_engine_is_noticed_its_streams_hear_of_it_and_its_replica_is_replaced(client, service, capsys):
    settled(client)
    before = {r["id"] for r in status(client)["replicas"]}
    service.look()
    engine = service.engines()[0]
    streams = Streams(8)
    assert wait_until(lambda: all(r["running"] for r in status(client)["replicas"]), 30), "both have some"
    engine.send_signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    assert wait_until(lambda: any("it hangs" in fault for fault in faults(client)), 15, 0.1)
    noticed_s = time.monotonic() - stopped_s
    ends = streams.join()
    waited_s = [at_s - stopped_s for at_s, end in zip(streams.ended_s, streams.ends, strict=True) if end != "whole"]
    assert wait_until(lambda: gone(engine), 60), "it is ended"
    with capsys.disabled():
        print(
            f"\nhung engine: noticed after {noticed_s:.1f} s, streams {dict(ends)}, the last heard {max(waited_s):.1f} s"
        )
    assert noticed_s < 15
    assert set(ends) == {"whole", "error event"}, "from the replica, before Serve ends it"
    assert max(waited_s) < 15
    settled(client)
    assert {r["id"] for r in status(client)["replicas"]} != before


def test_a_replica_that_stands_still_is_ended_and_its_engine_with_it(client, service, capsys):
    settled(client)
    service.look()
    replica = service.replicas()[0]
    engine = next(each for each in replica.children(recursive=True) if each.name().startswith("VLLM::EngineCor"))
    streams = Streams(8)
    assert wait_until(lambda: all(r["running"] for r in status(client)["replicas"]), 30), "both have some"
    replica.send_signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    assert wait_until(lambda: gone(replica), 60)
    took_s = time.monotonic() - stopped_s
    assert wait_until(lambda: gone(engine), 20), "it would keep its memory, and a GPU's"
    ends = streams.join()
    with capsys.disabled():
        print(f"\nstopped replica: ended after {took_s:.1f} s, streams {dict(ends)}")
    assert took_s < 50, "Serve would let it finish its requests until then"
    settled(client)


def test_a_controller_that_stands_still_is_replaced_and_its_successor_goes_on_above_its_epoch(client, service, capsys):
    settled(client)
    for mode in ("fp8", "auto"):
        epoch = client.post("/admin/directive", json={"mode": mode}, headers=ADMIN).json()["epoch"]
    service.look()
    (controller,) = service.children(r"^ray::ControllerActor")
    controller.send_signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    try:
        assert wait_until(lambda: gone(controller), 60), "it is ended"
        with capsys.disabled():
            print(f"\nstopped controller: ended after {time.monotonic() - stopped_s:.1f} s")
    finally:
        with contextlib.suppress(psutil.Error):
            controller.resume()
    settled(client)
    assert len(service.children(r"^ray::ControllerActor")) == 1
    assert status(client)["epoch"] > epoch


HAPROXY, GCS = r"/haproxy -db", r"/gcs_server "


@pytest.mark.parametrize(
    ("part", "number"),
    [
        *((r"^ray::ServeReplica:nestedfp-control", number) for number in (signal.SIGKILL, signal.SIGSTOP)),
        *((HAPROXY, number) for number in (signal.SIGKILL, signal.SIGSTOP)),
        (r"^ray::HAProxyManager", signal.SIGKILL),
        (r"^ray::ServeController", signal.SIGKILL),
        (GCS, signal.SIGSTOP),
    ],
)
def test_whatever_else_dies_or_stands_still_no_request_hangs_and_none_looks_whole_that_is_not(
    client, service, capsys, part, number
):
    settled(client)
    service.look()
    replicas, victims = set(service.replicas()), service.children(part)
    assert victims
    with Load(4) as load:
        assert wait_until(lambda: load.done() >= 8, 60)
        began_s, done = time.monotonic(), load.done()
        for each in victims:
            each.send_signal(number)
        if number is signal.SIGSTOP:
            wait_until(lambda: all(map(gone, victims)), 10 if part == GCS else 60)
            for each in victims:
                with contextlib.suppress(psutil.Error):
                    each.resume()
        settled(client)
        took_s = time.monotonic() - began_s
        assert wait_until(lambda: load.done() >= done + 20, 60)
    failed = [asked.end for asked in load.asked if asked.failed]
    with capsys.disabled():
        print(f"\n{part} {number.name}: well again after {took_s:.0f} s, {len(failed)} of {len(load.asked)} failed")
    assert not [end for end in failed if "timed out" in end], "it hung"
    assert not [asked for asked in load.asked if asked.failed and asked.status == 200 and asked.end != "error event"]
    assert part == HAPROXY or "Proxy" in part or not failed
    assert set(service.replicas()) == replicas


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
    streams = Streams(2, tokens=300)
    with Poll() as poll:
        began_s = time.monotonic()
        os.killpg(service.process.pid, signal.SIGTERM)
        assert service.process.wait(120) == 0
        took_s = time.monotonic() - began_s
    ends = streams.join()
    with capsys.disabled():
        print(f"\nstopped after {took_s:.1f} s; streams {dict(ends)}, answers meanwhile {poll.statuses()}")
    assert ends == {"whole": 2}, "the stop waits for streams"
    statuses = set(poll.statuses())
    assert statuses <= {200, 503, "ConnectError", "ReadError", "RemoteProtocolError"}, "503 with a sentence, not 404"
    assert 503 in statuses, "while the streams end, others hear that the service stops"
    _, alive = psutil.wait_procs(service.family, timeout=10)
    assert not alive, f"left running: {alive}"
    assert not [name for name in service.memory if (leftovers.SHARED_MEMORY / name).exists()]
    assert not service.folder.exists()
    # A service that was killed hours ago may have left a session, and its number may be one of this one's by now.
    began_s = {process.pid: process.create_time() for process in service.family}
    sessions = [(path, int(path.name.rpartition("_")[2])) for path in Path("/tmp/ray").glob("session_2*")]
    assert not [path for path, pid in sessions if path.stat().st_mtime > began_s.get(pid, math.inf)]
