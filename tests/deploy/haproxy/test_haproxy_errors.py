"""What a client hears from HAProxy itself: of limits, of clients that do not read, of replicas that are not there."""

import contextlib
import json
import socket

import pytest
from haproxy_calls import ask, count, in_front, up
from haproxy_run import error_of, haproxies, ok, running
from live_service import wait_until

from deploy.haproxy.haproxy_config import ABSENT_RETRY_AFTER_S, RETRY_AFTER_S, Limits

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own


def test_a_body_beyond_the_limit_gets_413_before_it_is_sent(folder, replicas):
    replica = replicas(ok("in"))
    with in_front(folder, limits=Limits(body_bytes=1000), app=[replica]) as (_, port):
        up(port)
        assert ask(port, "/v1", "POST", b"x" * 1000)[0] == 200
        replica.seen.clear()
        status, _, body = ask(port, "/v1", "POST", None, {"Content-Length": "1001"})
    assert status == 413
    assert "larger than 1000 bytes" in error_of(body)["message"]
    assert replica.seen == []


@pytest.mark.parametrize("given", [None, 'a "quoted" \\ 100 % id'])
def test_every_error_of_haproxy_names_the_request_in_its_header_and_in_its_body(folder, replicas, given):
    # Where a connection to a replica had served others before, HAProxy closes the client's without a word.
    alone = {"Connection": "close"}

    def answer(path, headers, body):
        if path == "/dies":
            raise ConnectionResetError  # as a process that is killed
        if path == "/plain":
            return 503, {"Content-Type": "text/plain", **alone}, b"Request dropped due to backpressure"
        if path == "/moved":
            return 404, {"Content-Type": "text/plain", **alone}, b"Path '/moved' not found. Ping http://.../-/routes"
        if path == "/missing":
            error = {"message": "there is no /missing here", "type": "x", "param": None, "code": 404}
            own = json.dumps({"error": {**error, "request_id": headers["x-request-id"]}})
            return 404, {"Content-Type": "application/json", **alone}, own.encode()
        return 200, alone, b"in"

    replica, control = replicas(answer), replicas(ok("control"))
    sent = {} if given is None else {"x-request-id": given}
    with in_front(folder, limits=Limits(body_bytes=1000, request_s=2), app=[replica], control=[control]) as (_, port):
        up(port)
        asked = {
            "too large": ask(port, "/v1", "POST", None, {"Content-Length": "1001", **sent}),
            "long head": ask(port, headers={"x-long": "x" * 17_000, **sent}),
            "no method": ask(port, "/v1", "BREW", headers=sent),
            "half sent": ask(port, "/half", "POST", None, {"Content-Length": "100", **sent}),
            "died": ask(port, "/dies", headers=sent),
            "Ray Serve's": ask(port, "/plain", headers=sent),
            "no route of Ray Serve's": ask(port, "/moved", headers=sent),
            "no route of the service's own": ask(port, "/missing", headers=sent),
            "served": ask(port, headers=sent),
        }
        replica.stop()
        assert wait_until(lambda: ask(port)[0] == 503, 30, 0.05)
        asked["nobody there"] = ask(port, headers=sent)
        assert ask(port, "/status")[::2] == (200, b"control"), "the control routes need no replica"
    assert "/half" not in {path for path, _ in replica.seen}
    assert {name: status for name, (status, _, _) in asked.items()} == {
        "too large": 413, "long head": 431, "no method": 405, "half sent": 408, "died": 503, "Ray Serve's": 503,
        "no route of Ray Serve's": 503, "no route of the service's own": 404, "served": 200, "nobody there": 503,
    }  # fmt: skip
    assert "no replica can take this request now" in error_of(asked["no route of Ray Serve's"][2])["message"]
    for name in ("no route of Ray Serve's", "nobody there"):
        assert asked[name][1]["retry-after"] == str(RETRY_AFTER_S)
    assert (
        "the service starts, stops or has lost its replicas; try again" in error_of(asked["nobody there"][2])["message"]
    )
    ids = {name: headers["x-request-id"] for name, (_, headers, _) in asked.items()}
    assert set(ids.values()) == {given} if given else len(set(ids.values())) == len(ids)
    for name, (_, _, body) in asked.items():
        if name != "served":
            assert error_of(body)["request_id"] == ids[name], name


def _held(folder, port):
    """Whether HAProxy holds the connection of a client that has this port."""
    connections = [each for process in haproxies(folder) for each in process.net_connections("tcp")]
    return any(each.raddr and each.raddr.port == port for each in connections)


def test_a_client_that_reads_nothing_is_let_go(folder, replicas):
    answered = b"x" * (64 << 20)  # more than all buffers on the way hold

    def answer(path, headers, body):
        return 200, {}, answered if path == "/much" else b"in"

    replica = replicas(answer)
    with in_front(folder, limits=Limits(idle_client_s=1), app=[replica]) as (_, port):
        up(port)
        with socket.create_connection(("127.0.0.1", port), 60) as deaf:
            deaf.sendall(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
            assert wait_until(lambda: count(replica, "/much"), 60, 0.05)
            own = deaf.getsockname()[1]
            assert wait_until(lambda: not _held(folder, own), 40, 0.05), "HAProxy still holds the connection"
            got = 0
            with contextlib.suppress(ConnectionError):
                while part := deaf.recv(1 << 20):
                    got += len(part)
            assert got < len(answered), "it was cut off"
        assert ask(port)[::2] == (200, b"in"), "others are served on"


def _refused(port):
    try:
        return ask(port)[0]
    except OSError:
        return False


def test_before_anything_is_deployed_the_answer_is_503_as_well(folder):
    with running(folder, {}) as (_, port):
        assert wait_until(lambda: _refused(port), 20, 0.05)
        status, headers, body = ask(port, "/v1/models")
    assert (status, int(headers["retry-after"])) == (503, ABSENT_RETRY_AFTER_S)
    assert error_of(body)["type"] == "server_error"
    assert error_of(body)["message"] == (
        "no replica can take this request now: the service starts, stops or has lost its replicas; try again"
    )
