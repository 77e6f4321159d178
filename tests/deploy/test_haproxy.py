"""HAProxy in front of the replicas: Ray Serve's own template read, our configuration checked and run by the real HAProxy."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from haproxy_run import Replica, error_of, ok, render, running
from live_service import wait_until
from processes import ROOT
from ray_nodes import listens

from deploy import environment, haproxy
from deploy.absence import SHORTEST_S, UNKNOWN_S
from deploy.config import load
from deploy.front.peers import Elsewhere
from deploy.haproxy_config import (
    ATTEMPT_HEADER,
    ELSEWHERE_STATUS,
    MOST_TRIES,
    RETRY_AFTER_S,
    TEMPLATE_CHANGED,
    Limits,
    Targets,
    read,
    write,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own

APP, CONTROL = "nestedfp-app", "nestedfp-control"
BACKENDS = {
    "none": {},
    "an application": {APP: ("/", [30001])},
    "two applications and two replicas": {APP: ("/", [30001, 30002]), CONTROL: ("/control", [30003])},
    "no replica": {APP: ("/", []), CONTROL: ("/control", [])},
}


def targets_of(folder: Path, backends: dict) -> Targets:
    return read(render(folder, 18000, backends).read_text())


def ask(port, path="/", method="GET", body=None, headers=None, timeout_s=10.0):
    """(status, headers with lower-case names, body) of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def answers(port, path="/"):
    try:
        return ask(port, path)[0] == 200
    except OSError:
        return False


# -- the configuration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backends", BACKENDS.values(), ids=BACKENDS)
def test_haproxy_itself_finds_our_configuration_valid(tmp_path, backends):
    path = tmp_path / "ours.cfg"
    path.write_text(write(targets_of(tmp_path, backends), Limits()))
    done = subprocess.run([haproxy.binary(), "-c", "-f", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ALERT" not in done.stderr
    assert "WARNING" not in done.stderr, done.stderr


def test_replicas_are_taken_over_and_the_python_proxy_is_not(tmp_path):
    targets = targets_of(tmp_path, BACKENDS["two applications and two replicas"])
    assert [(backend.name, backend.prefix) for backend in targets.backends] == [(CONTROL, "/control"), (APP, "")]
    assert [line.split()[2] for line in targets.backends[1].servers] == ["127.0.0.1:30001", "127.0.0.1:30002"]
    assert targets.bind == "bind 127.0.0.1:18000"
    text = write(targets, Limits())
    assert "fallback" not in text
    assert "listen stats" not in text
    assert "prometheus" not in text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("stats socket", "no line 'stats socket'"),
        ("bind 127", "no line 'bind'"),
        ("acl is_nestedfp-app path_beg", "no line 'acl is_nestedfp-app path_beg' for the backend 'nestedfp-app'"),
        ("default-server", "no line 'default-server' for the backend"),
        ("use_backend nestedfp-app", "no line 'use_backend' for"),
        ("acl healthcheck", "no line 'acl healthcheck'"),
    ],
)
def test_another_template_gives_one_clear_error(tmp_path, line, told):
    text = render(tmp_path, 18000, BACKENDS["two applications and two replicas"]).read_text()
    changed = "\n".join(each for each in text.splitlines() if not each.strip().startswith(line))
    assert changed != text
    if line == "acl healthcheck":
        changed = changed.replace("healthcheck", "health")
    with pytest.raises(ValueError, match="^" + TEMPLATE_CHANGED) as caught:
        read(changed)
    assert told in str(caught.value)


def test_the_launcher_says_in_one_line_why_haproxy_cannot_be_started(tmp_path):
    variables = haproxy.environment(tmp_path, 1)
    (tmp_path / "haproxy.cfg").write_text("global\n")
    done = subprocess.run(
        [variables["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(tmp_path / "haproxy.cfg")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: HAProxy cannot be started: ")
    assert TEMPLATE_CHANGED in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_request_is_offered_to_as_many_replicas_as_there_may_be():
    assert [_tries(replicas) for replicas in (1, 2, 3, 100)] == [2, 4, 6, MOST_TRIES]


def test_a_folder_whose_sockets_haproxy_could_not_bind_is_refused_at_once(tmp_path, capsys):
    long = tmp_path / "a-folder-with-a-long-name"
    command = ["--config", str(ROOT / "deploy/configs/demo.yaml"), "--folder", str(long)]
    assert environment.main(command) == 2
    assert "a path of at most 29 characters" in capsys.readouterr().err
    assert not long.exists()


def test_ray_serve_takes_up_what_its_nodes_environment_says_of_ends_and_checks():
    with tempfile.TemporaryDirectory() as folder:
        variables = environment.of(load(ROOT / "deploy/configs/demo.yaml"), Path(folder))
    names = [
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS",
        "DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S",
        "DEPLOYMENT_ACTOR_HEALTH_CHECK_TIMEOUT_S",
        "DEPLOYMENT_ACTOR_HEALTH_CHECK_UNHEALTHY_THRESHOLD",
    ]
    code = f"from ray.serve._private import constants; print([getattr(constants, name) for name in {names}])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[True, 2.0, 8.0, 3]"


def _tries(replicas):
    with tempfile.TemporaryDirectory() as folder:
        variables = haproxy.environment(Path(folder), replicas)
    return json.loads(variables[haproxy.SETTINGS_ENV])["limits"]["tries"]


# -- a running HAProxy -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder():
    # A socket's path may have 107 characters; pytest's own folders are longer.
    import shutil

    path = environment.private_folder()
    yield path

    def removed():
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()

    assert wait_until(removed, 10), "a watcher may just be leaving its last word in it, no more"


@pytest.fixture
def replicas():
    made = []

    def make(answer):
        made.append(Replica(answer))
        return made[-1]

    yield make
    for replica in made:
        replica.stop()


def in_front(folder, limits=None, control=(), **apps):
    """HAProxy in front of replicas; wait for it with ``up``."""
    backends = {APP: ("/", [replica.port for replica in apps["app"]])}
    if control:
        backends[CONTROL] = ("/control", [replica.port for replica in control])
    return running(folder, backends, limits)


def up(port, path="/"):
    assert wait_until(lambda: answers(port, path), 20, 0.05), "HAProxy does not answer"


def elsewhere(path, headers, body):
    if path == "/up":
        return 200, {}, b""
    return ELSEWHERE_STATUS, {"Retry-After": "2"}, b'{"error": {}}'


def test_a_request_that_one_replica_sends_elsewhere_is_answered_by_the_other(folder, replicas):
    first, second = replicas(elsewhere), replicas(ok("second"))
    with in_front(folder, app=[first, second]) as (_, port):
        up(port, "/up")
        got = [ask(port, "/v1", "POST", b"x" * 1000, {ATTEMPT_HEADER: "forged"}) for _ in range(8)]
    assert {(status, body) for status, _, body in got} == {(200, b"second")}
    tried = [headers[ATTEMPT_HEADER] for path, headers in first.seen if path == "/v1"]
    answered = [headers[ATTEMPT_HEADER] for path, headers in second.seen if path == "/v1"]
    assert tried, "the first replica was asked as well"
    assert set(tried) <= set(answered), "both know the request by the same name"
    assert "forged" not in answered
    assert len(set(answered)) == 8


@pytest.mark.parametrize(
    ("ended_after_s", "gone_for_s", "told"),
    [(40, 10, (5, 30)), (40, 200, (2, 2)), (500, 10, (60, 60)), (None, 10, (10, 10))],
    ids=["as long as is left", "longer than expected", "no longer than clients believe", "nobody knows"],
)
def test_a_client_that_finds_no_replica_hears_when_there_should_be_one(folder, ended_after_s, gone_for_s, told):
    known = {"": {"since_s": time.time() - gone_for_s, "took_s": ended_after_s}}
    (folder / haproxy.ABSENCES).write_text(json.dumps(known))
    with in_front(folder, app=[]) as (_, port):
        assert wait_until(lambda: listens("127.0.0.1", port), 20, 0.05)
        status, headers, body = ask(port, "/v1/models")
    assert status == 503
    assert told[0] <= int(headers["retry-after"]) <= told[1]
    assert ("for 40 s" in error_of(body)["message"]) == (ended_after_s == 40)


def test_how_long_there_was_no_replica_is_measured_from_one_configuration_to_the_next(folder, replicas):
    with in_front(folder, app=[]) as (_, port):
        assert wait_until(lambda: listens("127.0.0.1", port), 20, 0.05)
        assert ask(port)[1]["retry-after"] == "10", "the first start: nobody knows"
        first = haproxies(folder)[0]
        since_s = json.loads((folder / haproxy.ABSENCES).read_text())[""]["since_s"]
        assert wait_until(lambda: time.time() > since_s + 4, 10)
        only = replicas(ok("in"))
        render(folder, port, {APP: ("/", [only.port])})
        with reloaded(folder, first):
            assert wait_until(lambda: answers(port), 20, 0.05)
            first = haproxies(folder)[0]
            only.stop()
            render(folder, port, {APP: ("/", [])})
            with reloaded(folder, first):
                assert wait_until(lambda: ask(port)[0] == 503, 20, 0.05)
                _, headers, body = ask(port)
                measured = json.loads((folder / haproxy.ABSENCES).read_text())[""]
    assert measured["took_s"] > 4
    assert SHORTEST_S <= int(headers["retry-after"]) <= measured["took_s"] + 1
    assert "The last time there was none for" in error_of(body)["message"]


def test_whom_everybody_sends_elsewhere_hears_429_and_never_how_it_was_told(folder, replicas):
    with in_front(folder, app=[replicas(elsewhere), replicas(elsewhere)]) as (_, port):
        up(port, "/up")
        status, headers, _ = ask(port, "/v1", "POST", b"x")
    assert status == 429
    assert headers["retry-after"] == "2"


def test_the_second_sight_of_a_request_is_final(folder, replicas):
    def refusing():
        """Refuses all, as a full replica does: elsewhere at first sight, 429 at the second."""
        seen = Elsewhere()

        def answer(path, headers, body):
            if path == "/up":
                return 200, {}, b""
            raw = {name.encode(): value.encode() for name, value in headers.items()}
            if seen.may_go(raw, len(body)):
                return ELSEWHERE_STATUS, {}, b""
            return 429, {"Retry-After": "7"}, b'{"error": {"message": "full"}}'

        return answer

    both = [replicas(refusing()), replicas(refusing())]
    with in_front(folder, app=both) as (_, port):
        up(port, "/up")
        for each in both:
            each.seen.clear()
        status, headers, body = ask(port, "/v1", "POST", b"x")
    assert (status, headers["retry-after"], json.loads(body)["error"]["message"]) == (429, "7", "full")
    offered = [len(each.seen) for each in both]
    assert sum(offered) <= Limits().tries
    assert min(offered) >= 1, "both were asked before the client was refused"


def test_a_body_beyond_the_limit_gets_413_before_it_is_sent(folder, replicas):
    replica = replicas(ok("in"))
    with in_front(folder, Limits(body_bytes=1000), app=[replica]) as (_, port):
        up(port)
        assert ask(port, "/v1", "POST", b"x" * 1000)[0] == 200
        replica.seen.clear()
        status, _, body = ask(port, "/v1", "POST", None, {"Content-Length": "1001"})
    assert status == 413
    assert "larger than 1000 bytes" in error_of(body)["message"]
    assert replica.seen == []


def test_headers_beyond_the_limit_get_431(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (_, port):
        up(port)
        assert ask(port, headers={"x-long": "x" * 15_000})[0] == 200
        status, _, body = ask(port, headers={"x-long": "x" * 17_000})
        assert (status, error_of(body)["code"]) == (431, 431)
        assert ask(port, headers={"x-long": "x" * 80_000})[0] == 400, "more than HAProxy can read"


def test_a_request_id_beyond_ascii_gets_400(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (_, port):
        up(port)
        assert ask(port, headers={"x-request-id": "a b-{7}"})[0] == 200
        status, _, body = ask(port, headers={"x-request-id": "é"})
        assert (status, error_of(body)["code"]) == (400, 400)


def test_a_request_without_an_id_gets_one_and_one_with_an_id_keeps_it(folder, replicas):
    replica = replicas(ok("in"))
    with in_front(folder, app=[replica]) as (_, port):
        up(port)
        replica.seen.clear()
        ask(port)
        ask(port, headers={"x-request-id": "mine"})
    given, kept = [{k.lower(): v for k, v in headers.items()}["x-request-id"] for _, headers in replica.seen]
    assert (len(given), kept) == (36, "mine")


@pytest.mark.parametrize("given", [None, 'a "quoted" \\ 100 % id'])
def test_every_error_of_haproxy_names_the_request_in_its_header_and_in_its_body(folder, replicas, given):
    # Where a connection to a replica had served others before, HAProxy closes the client's without a word.
    alone = {"Connection": "close"}

    def answer(path, headers, body):
        if path == "/dies":
            raise ConnectionResetError  # as a process that is killed
        if path == "/plain":
            return 503, {"Content-Type": "text/plain", **alone}, b"Request dropped due to backpressure"
        return 200, alone, b"in"

    replica = replicas(answer)
    sent = {} if given is None else {"x-request-id": given}
    with in_front(folder, Limits(body_bytes=1000, request_s=2), app=[replica], control=[]) as (_, port):
        up(port)
        asked = {
            "too large": ask(port, "/v1", "POST", None, {"Content-Length": "1001", **sent}),
            "long head": ask(port, headers={"x-long": "x" * 17_000, **sent}),
            "no method": ask(port, "/v1", "BREW", headers=sent),
            "half sent": ask(port, "/v1", "POST", None, {"Content-Length": "100", **sent}),
            "died": ask(port, "/dies", headers=sent),
            "Ray Serve's": ask(port, "/plain", headers=sent),
            "served": ask(port, headers=sent),
        }
        replica.stop()
        assert wait_until(lambda: ask(port)[0] == 503, 10, 0.05)
        asked["nobody there"] = ask(port, headers=sent)
    assert {name: status for name, (status, _, _) in asked.items()} == {
        "too large": 413, "long head": 431, "no method": 405, "half sent": 408, "died": 503, "Ray Serve's": 503,
        "served": 200, "nobody there": 503,
    }  # fmt: skip
    ids = {name: headers["x-request-id"] for name, (_, headers, _) in asked.items()}
    assert set(ids.values()) == {given} if given else len(set(ids.values())) == len(ids)
    for name, (_, _, body) in asked.items():
        if name != "served":
            assert error_of(body)["request_id"] == ids[name], name


def test_what_openais_client_raises_knows_the_request(folder, replicas):
    openai = pytest.importorskip("openai")
    event = (
        b'data: {"error": {"message": "it died", "type": "x", "param": null, "code": 503, "request_id": "mine"}}\n\n'
    )
    streaming = {"Content-Type": "text/event-stream"}
    replica = replicas(lambda path, headers, body: (200, streaming if "chat" in path else {}, event))
    with in_front(folder, Limits(body_bytes=1000), app=[replica]) as (_, port):
        up(port)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
        headers = {"x-request-id": "mine"}
        with pytest.raises(openai.APIStatusError) as refused:
            client.completions.create(model="m", prompt="x" * 2000, extra_headers=headers)
        with pytest.raises(openai.APIError) as broken:
            list(client.chat.completions.create(model="m", messages=[], stream=True, extra_headers=headers))
    assert (refused.value.status_code, refused.value.request_id, refused.value.body["request_id"]) == (
        413,
        "mine",
        "mine",
    )
    assert (broken.value.message, broken.value.body["request_id"]) == ("it died", "mine")


def test_a_request_that_never_arrives_as_a_whole_is_let_go_and_no_replica_sees_it(folder, replicas):
    replica = replicas(ok("in"))
    with in_front(folder, Limits(request_s=1), app=[replica]) as (_, port):
        up(port)
        replica.seen.clear()
        with socket.create_connection(("127.0.0.1", port), 5) as raw:
            raw.sendall(b"POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
            text = b"".join(iter(lambda: raw.recv(4096), b""))
    head, _, body = text.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert "did not arrive as a whole within 1 s" in error_of(body)["message"]
    assert replica.seen == []


def test_a_client_that_reads_nothing_is_let_go(folder, replicas):
    answered = b"x" * (64 << 20)  # more than all buffers on the way hold

    def answer(path, headers, body):
        return 200, {}, answered if path == "/much" else b"in"

    replica = replicas(answer)
    with in_front(folder, Limits(idle_client_s=1), app=[replica]) as (_, port):
        up(port)
        with socket.create_connection(("127.0.0.1", port), 60) as deaf:
            deaf.sendall(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
            assert wait_until(lambda: _count(replica, "/much"), 60, 0.05)
            own = deaf.getsockname()[1]
            assert wait_until(lambda: not _held(folder, own), 40, 0.05), "HAProxy still holds the connection"
            got = 0
            with contextlib.suppress(ConnectionError):
                while part := deaf.recv(1 << 20):
                    got += len(part)
            assert got < len(answered), "it was cut off"
        assert ask(port)[::2] == (200, b"in"), "others are served on"


def test_where_no_replica_is_up_the_answer_is_503_with_a_sentence_and_a_time(folder, replicas):
    only = Replica(ok("in"))
    control = replicas(ok("control"))
    with in_front(folder, app=[only], control=[control]) as (_, port):
        up(port)
        only.stop()
        stopped_s, cut = time.monotonic(), 0
        while time.monotonic() - stopped_s < 2:  # before and after HAProxy has noticed
            try:
                status, headers, body = ask(port, "/v1/models")
            except http.client.RemoteDisconnected:  # the idle connection to the replica, which this one went out on
                cut += 1
                assert cut == 1
                continue
            assert status == 503
            assert int(headers["retry-after"]) == RETRY_AFTER_S
            assert "try again" in error_of(body)["message"]
        assert "the service starts, stops or has lost its replicas" in error_of(body)["message"]
        assert ask(port, "/status")[::2] == (200, b"control"), "the control routes need no replica"


def test_before_anything_is_deployed_the_answer_is_503_as_well(folder):
    with running(folder, {}) as (_, port):
        assert wait_until(lambda: _refused(port), 20, 0.05)
        status, headers, body = ask(port, "/v1/models")
    assert (status, int(headers["retry-after"])) == (503, UNKNOWN_S)
    assert error_of(body)["type"] == "service_unavailable"
    assert error_of(body)["message"] == (
        "no replica can take this request now: the service starts, stops or has lost its replicas; try again"
    )


def _refused(port):
    try:
        return ask(port)[0]
    except OSError:
        return False


def test_a_replica_that_ends_before_it_answers_gives_503_and_its_request_to_nobody_else(folder, replicas):
    def die(path, headers, body):
        if path == "/up":
            return 200, {}, b""
        raise ConnectionResetError

    both = [replicas(die), replicas(die)]
    with in_front(folder, app=both) as (_, port):
        up(port, "/up")
        for each in both:
            each.seen.clear()
        status, headers, body = ask(port, "/v1", "POST", b"x")
    assert (status, int(headers["retry-after"])) == (503, RETRY_AFTER_S)
    assert "ended before it answered" in error_of(body)["message"]
    assert sum(len(each.seen) for each in both) == 1


def test_control_routes_of_the_root_go_to_the_control_application(folder, replicas):
    control = replicas(ok("control"))
    app = replicas(ok("app"))
    with in_front(folder, app=[app], control=[control]) as (_, port):
        up(port)
        assert wait_until(lambda: answers(port, "/control/up"), 20, 0.05)
        control.seen.clear()
        paths = ["/status", "/decisions?since=3", "/admin/directive", "/admin/reload", "/control/status"]
        assert {ask(port, path)[2] for path in paths} == {b"control"}
        others = ["/v1/models", "/status/", "/statusx", "/x/status", "/admin", "/controlx"]
        assert {ask(port, path)[2] for path in others} == {b"app"}
    assert [path for path, _ in control.seen] == [
        "/control/status",
        "/control/decisions?since=3",
        "/control/admin/directive",
        "/control/admin/reload",
        "/control/status",
    ]


def test_requests_go_to_the_replica_with_the_least_outstanding(folder, replicas):
    gate = threading.Event()

    def slow(path, headers, body):
        if path == "/slow":
            gate.wait(20)
        return 200, {}, b"slow"

    first, second = replicas(slow), replicas(slow)
    with in_front(folder, app=[first, second]) as (_, port), ThreadPoolExecutor(4) as pool:
        up(port)
        waiting = [pool.submit(ask, port, "/slow", timeout_s=30)]
        assert wait_until(lambda: _count(first, "/slow") + _count(second, "/slow") == 1, 5, 0.01)
        busy, idle = (first, second) if _count(first, "/slow") else (second, first)
        for _ in range(20):
            assert ask(port, "/quick")[0] == 200
        # Not all: HAProxy counts an answer as outstanding for a moment after its client has it.
        assert _count(idle, "/quick") >= 15
        assert _count(idle, "/quick") + _count(busy, "/quick") == 20
        gate.set()
        assert waiting[0].result()[0] == 200


def _count(replica, path):
    return sum(seen == path for seen, _ in replica.seen)


# -- its life ----------------------------------------------------------------------------------------------------------


def family(folder):
    """Processes that run because of this folder: HAProxy and its watchers."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


def haproxies(folder):
    return [process for process in family(folder) if process.name() == "haproxy"]


def _held(folder, port):
    """Whether HAProxy holds the connection of a client that has this port."""
    connections = [each for process in haproxies(folder) for each in process.net_connections("tcp")]
    return any(each.raddr and each.raddr.port == port for each in connections)


def test_nothing_listens_beyond_loopback_and_the_admin_socket_is_private(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (_, port):
        up(port)
        (running_one,) = haproxies(folder)
        listening = [c.laddr for c in running_one.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert [(address.ip, address.port) for address in listening] == [("127.0.0.1", port)]
        assert (folder / "admin.sock").stat().st_mode & 0o077 == 0
        assert folder.stat().st_mode & 0o077 == 0


def test_a_killed_haproxy_is_back_within_two_seconds_and_the_next_one_takes_over_from_it(folder, replicas):
    gate = threading.Event()

    def answer(path, headers, body):
        if path == "/slow":
            gate.wait(30)
        return 200, {}, b"in"

    with in_front(folder, app=[replicas(answer)]) as (node, port), ThreadPoolExecutor(1) as pool:
        up(port)
        manager = psutil.Process(haproxies(folder)[0].ppid())
        time.sleep(haproxy.STARTED_S + 0.1)  # one that ends sooner is taken for one that could not start
        for process in haproxies(folder):
            process.kill()
        killed_s = time.monotonic()
        assert wait_until(lambda: answers(port), 10, 0.02)
        assert time.monotonic() - killed_s < 2
        assert wait_until(lambda: not _lives(manager), 5), "Ray Serve's manager is ended: it holds on to the dead one"
        (replacement,) = haproxies(folder)
        slow = pool.submit(ask, port, "/slow", timeout_s=40)
        time.sleep(0.3)
        render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
        node.start_manager()
        assert wait_until(lambda: _says(port, b"new"), 20, 0.05), "the next manager's HAProxy has the port"
        gate.set()
        assert slow.result()[::2] == (200, b"in"), "a request of the replacement ends well"
        assert wait_until(lambda: not _lives(replacement), 10)


@pytest.mark.slow
def test_a_hung_haproxy_is_ended_and_replaced_within_fifteen_seconds(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (_, port):
        up(port)
        (hung,) = haproxies(folder)
        time.sleep(haproxy.CHECK_EVERY_S + 1)  # checked once at least while it is well
        hung.suspend()
        stopped_s = time.monotonic()
        assert wait_until(lambda: not _lives(hung), 20, 0.05)
        assert wait_until(lambda: answers(port), 10, 0.02)
        assert time.monotonic() - stopped_s < 15


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True], ids=["which serves on", "which hangs"])
def test_a_manager_that_died_alone_leaves_a_haproxy_from_which_the_next_one_takes_over(folder, replicas, hangs):
    with in_front(folder, app=[replicas(ok("old"))]) as (node, port):
        up(port)
        (left,) = haproxies(folder)
        psutil.Process(left.ppid()).kill()
        assert answers(port)
        if hangs:
            left.suspend()
        render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
        node.start_manager()
        assert wait_until(lambda: _says(port, b"new"), 20, 0.05)
        assert wait_until(lambda: not _lives(left), 10, 0.05)
        (successor,) = haproxies(folder)
        assert wait_until(lambda: answers(port), 2)
        assert _lives(successor)


def crash(folder):
    """End HAProxy together with the manager that started it, as Ray does."""
    (first,) = haproxies(folder)
    manager = psutil.Process(first.ppid())
    time.sleep(haproxy.STARTED_S + 0.1)
    manager.kill()
    first.kill()


def test_a_haproxy_that_is_ended_with_its_manager_is_back_within_two_seconds(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (node, port):
        up(port)
        crash(folder)
        killed_s = time.monotonic()
        assert wait_until(lambda: answers(port), 10, 0.02)
        assert time.monotonic() - killed_s < 2
        render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
        node.start_manager()
        assert wait_until(lambda: _says(port, b"new"), 20, 0.05), "the next manager's HAProxy has the port"


def test_when_serve_is_shut_down_and_the_node_stays_the_port_is_free_soon(folder, replicas):
    """The manager kills its HAProxy and ends, as at a crash; but the replicas have gone too."""
    replica = replicas(ok("in"))
    with in_front(folder, app=[replica]) as (node, port):
        up(port)
        crash(folder)
        assert wait_until(lambda: answers(port), 10, 0.02), "one that may have crashed is replaced at once"
        replica.stop()
        limit_s = haproxy.GONE_AFTER_S + haproxy.CHECK_EVERY_S + 5
        assert wait_until(lambda: not listens("127.0.0.1", port), limit_s)
        render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
        node.start_manager()
        assert wait_until(lambda: _says(port, b"new"), 20, 0.05), "and the next deployment finds it so"


def test_who_is_taken_over_from_is_named_once():
    started, reloaded = ["haproxy", "-f", "c"], ["haproxy", "-f", "c", "-sf", "7", "-x", "s"]
    assert haproxy.taking_over(started, []) == started
    assert haproxy.taking_over(started, [8, 9]) == [*started, "-sf", "8", "9"]
    assert haproxy.taking_over(reloaded, [7]) == reloaded
    assert haproxy.taking_over(reloaded, [8, 7]) == ["haproxy", "-f", "c", "-sf", "8", "7", "-x", "s"]


def test_what_has_never_answered_starts_still_and_one_late_answer_is_no_hang():
    checks = haproxy.Checks()
    assert not any(checks.hangs(False) for _ in range(10))
    assert not any(checks.hangs(answers) for answers in (True, False, False, True, False, False))
    assert checks.hangs(False)


@contextlib.contextmanager
def reloaded(folder, first):
    """Another HAProxy takes over from the first; yields the process in the place of Ray Serve's manager."""
    command = [str(folder / "haproxy"), *first.cmdline()[1:], "-sf", str(first.pid), "-x", str(folder / "admin.sock")]
    with (folder / "reload.log").open("ab") as log:
        manager = subprocess.Popen(
            # Not this process: a manager is ended with the HAProxy that it started.
            [sys.executable, "-c", f"import subprocess, time; subprocess.run({command!r}); time.sleep(600)"],
            env={**os.environ, **haproxy.environment(folder, 2)},
            stdout=log,
            stderr=log,
        )
    try:
        yield manager
    finally:
        manager.kill()
        manager.wait()
        for process in haproxies(folder):
            process.kill()


def test_one_that_is_killed_just_after_a_reload_is_back_as_well(folder, replicas):
    with in_front(folder, app=[replicas(ok("old"))]) as (_, port):
        up(port)
        first = haproxies(folder)[0]
        render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
        with reloaded(folder, first) as manager:
            assert wait_until(lambda: _says(port, b"new"), 20, 0.02)
            assert wait_until(lambda: not _lives(first), 10, 0.02)
            for process in haproxies(folder):
                process.kill()
            assert manager.wait(10) == -signal.SIGKILL
            assert wait_until(lambda: _says(port, b"new"), 10, 0.02)


def _says(port, text):
    with contextlib.suppress(OSError, http.client.HTTPException):  # the port changes hands
        return ask(port)[2] == text
    return False


def _lives(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_reload_drops_nothing_and_starts_no_second_haproxy(folder, replicas):
    with in_front(folder, app=[replicas(ok("old"))]) as (_, port):
        up(port)
        first = haproxies(folder)[0]
        render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
        outcomes, stop = [], threading.Event()

        def knock():
            while not stop.is_set():
                outcomes.append(ask(port)[0])

        thread = threading.Thread(target=knock)
        thread.start()
        try:
            with reloaded(folder, first) as manager:
                assert wait_until(lambda: ask(port)[2] == b"new", 20, 0.05)
                assert wait_until(lambda: not _lives(first), 10)
                time.sleep(0.5)
                assert [process.ppid() for process in haproxies(folder)] == [manager.pid]
                stop.set()
                thread.join()
                assert set(outcomes) == {200}
        finally:
            stop.set()


def test_an_application_that_serve_leaves_out_while_it_builds_the_next_version_is_served_on(folder, replicas):
    old = replicas(ok("old"))
    control = replicas(ok("control"))
    with in_front(folder, app=[old]) as (_, port):
        up(port)
        first = haproxies(folder)[0]
        render(folder, port, {CONTROL: ("/control", [control.port])})
        with reloaded(folder, first):
            assert wait_until(lambda: not _lives(first), 10, 0.02)
            assert wait_until(lambda: answers(port, "/control/status"), 10, 0.02)
            assert [ask(port)[2] for _ in range(5)] == [b"old"] * 5
            second = haproxies(folder)[0]
            render(folder, port, {APP: ("/", []), CONTROL: ("/control", [control.port])})
            with reloaded(folder, second):
                assert wait_until(lambda: not _lives(second), 10, 0.02)
                assert [ask(port)[2] for _ in range(5)] == [b"old"] * 5
                third = haproxies(folder)[0]
                render(folder, port, {APP: ("/", [replicas(ok("new")).port]), CONTROL: ("/control", [control.port])})
                with reloaded(folder, third):
                    assert wait_until(lambda: not _lives(third), 10, 0.02)
                    assert wait_until(lambda: _says(port, b"new"), 10, 0.02)
                    assert [ask(port)[2] for _ in range(5)] == [b"new"] * 5, "what Serve names takes its place"


def test_the_replica_that_goes_takes_the_requests_until_the_new_one_has_answered_a_check(folder, replicas):
    with in_front(folder, app=[replicas(ok("old"))]) as (_, port):
        up(port)
        first = haproxies(folder)[0]
        (closed,) = environment.free_ports(1)
        render(folder, port, {APP: ("/", [closed])})
        with reloaded(folder, first):
            assert wait_until(lambda: not _lives(first), 10, 0.02)
            assert {ask(port)[0] for _ in range(40)} == {200}, "also before a check has failed"


def test_a_replica_that_drains_is_asked_while_there_is_no_other_and_an_unhealthy_one_is_not(folder, replicas):
    from ray.serve._private.constants import HEALTHY_MESSAGE

    only = replicas(ok("draining"))
    assert only.health == (200, {}, HEALTHY_MESSAGE.encode()), "as Ray Serve's replicas say it"
    with in_front(folder, app=[only]) as (_, port):
        up(port)
        only.health = (503, {}, b"DRAINING")
        until_s = time.monotonic() + 10 * 0.2  # several checks
        while time.monotonic() < until_s:
            assert ask(port)[2] == b"draining"
        only.health = (503, {}, b"UNHEALTHY")
        assert wait_until(lambda: ask(port)[0] == 503, 10, 0.02)


def test_of_an_application_that_has_been_deleted_nothing_stays_but_the_sentence(folder, replicas):
    old = replicas(ok("old"))
    with in_front(folder, app=[old]) as (_, port):
        up(port)
        first = haproxies(folder)[0]
        render(folder, port, {})
        with reloaded(folder, first):
            assert wait_until(lambda: not _lives(first), 10, 0.02)
            old.stop()
            assert wait_until(lambda: ask(port)[0] == 503, 10, 0.02)
            assert "no replica" in error_of(ask(port)[2])["message"]


def test_the_next_request_on_a_connection_that_was_open_at_a_reload_comes_to_the_replicas_of_today(folder, replicas):
    length = 64 << 20  # more than all buffers on the way hold
    old = replicas(lambda path, headers, body: (200, {}, b"o" * length))
    with in_front(folder, app=[old]) as (_, port):
        up(port)
        first = haproxies(folder)[0]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            answer = connection.getresponse()
            render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
            with reloaded(folder, first):
                assert wait_until(lambda: len(haproxies(folder)) == 2, 10, 0.02)
                assert wait_until(lambda: _says(port, b"new"), 10, 0.02)
                assert len(answer.read()) == length, "a stream that was in flight ends whole"
                old.stop()
                connection.request("GET", "/")
                second = connection.getresponse()
                assert (second.status, second.read()) == (200, b"new")


def test_when_the_nodes_process_ends_haproxy_ends_and_nothing_stays_behind(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (node, port):
        up(port)
        time.sleep(haproxy.STARTED_S + 0.1)
        assert family(folder)
        node.kill()
        assert wait_until(lambda: not family(folder), 5, 0.05), family(folder)
        with pytest.raises(OSError, match="refused"):
            ask(port)


@pytest.mark.slow
def test_a_replacement_ends_with_the_nodes_process_too(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (node, port):
        up(port)
        time.sleep(haproxy.STARTED_S + 0.1)
        haproxies(folder)[0].kill()
        assert wait_until(lambda: answers(port), 5, 0.02)
        node.kill()
        assert wait_until(lambda: not family(folder), 5, 0.05), family(folder)
