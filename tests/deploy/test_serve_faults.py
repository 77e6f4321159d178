"""The whole service attacked and broken, over HTTP: hostile requests, dead and hung processes, slow clients, open ports, the stop.

One service with two replicas for all tests of this file; they run in the order in which they stand.
"""

import collections
import contextlib
import datetime
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest
from live_service import ADMIN, KEY, MODEL, children, complete, demo_config, serve, wait_until

from benchmarks import stream_client
from chaos import hostile
from chaos.attacks import send_all
from deploy import leftovers
from deploy.accelerator import resolve

pytestmark = [pytest.mark.serve, pytest.mark.faults]

PORT = 8125
URL = f"http://127.0.0.1:{PORT}"
HANG_S = 120.0  # nothing that is asked here takes a hundredth of it on a machine of its own
LEAK = re.compile(r'Traceback|site-packages|0x[0-9a-f]{6,}|File "|/usr/|/tmp/')
LOCAL = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


class Poll:
    """Asks for the models all the time, in a thread; what it heard."""

    def __init__(self):
        self.heard = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self):
        with httpx.Client(base_url=URL, timeout=30, trust_env=False) as own:
            while not self._ended.wait(0.1):
                try:
                    answer = own.get("/v1/models")
                    self.heard.append((answer.status_code, answer.text))
                except httpx.TransportError as error:
                    self.heard.append((type(error).__name__, ""))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def statuses(self):
        return dict(collections.Counter(status for status, _ in self.heard))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with contextlib.ExitStack() as stack:
        with Poll() as poll:
            process = stack.enter_context(serve(folder, demo_config(), PORT))
        process.start = poll
        process.folder = Path(re.search(r"logs in (/tmp/nestedfp-\w+)/", (folder / "log").read_text())[1])
        process.memory, process.family = set(), set()
        look(process)
        yield process


def look(service):
    """Note the service's processes and what shared memory they have; before some of them are killed."""
    family = children(service)
    service.family |= set(family)
    service.memory |= leftovers.mapped([process.pid for process in family])


@pytest.fixture
def client(service):
    with httpx.Client(base_url=URL, timeout=120, trust_env=False) as client:
        yield client


def status(client):
    response = client.get("/status")
    return response.json() if response.status_code == 200 else {"replicas": []}


def faults(client):
    """What is said of replicas that take no request."""
    return [r["fault"] or "" for r in status(client)["replicas"] if not r["ready"]]


def gone(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def two_ready(client):
    """Both replicas report, and HAProxy sends requests to both."""
    ready = {r["id"] for r in status(client)["replicas"] if r["ready"] and not r["stale"]}
    answers = [client.get("/ready") for _ in range(6)]
    asked = {answer.json()["replica"] for answer in answers if answer.status_code == 200}
    return len(ready) == 2 and asked == ready


def settled(client):
    assert wait_until(lambda: two_ready(client), 600, 1.0), client.get("/status").text


def log_sizes(service):
    """How long each of the service's logs is."""
    return {
        path: path.stat().st_size for path in service.folder.rglob("*.*") if path.suffix in (".log", ".err", ".out")
    }


def new_text(service, before):
    """What the logs have got since, by file."""
    return {path: path.read_bytes()[before.get(path, 0) :].decode("utf-8", "replace") for path in log_sizes(service)}


def tracebacks(service, before):
    """The first traceback in each log since, with what stands before it."""
    found = {path.name: (text, text.find("Traceback (most")) for path, text in new_text(service, before).items()}
    return [(name, text[max(0, at - 500) : at + 2000]) for name, (text, at) in found.items() if at >= 0]


def replica_processes(service):
    return [process for process in children(service, r"^ray::.*ServeReplica:nestedfp:NestedFPServer")]


# -- hostile requests --------------------------------------------------------------------------------------------------


def test_during_the_start_the_answer_is_503_with_a_sentence(service):
    statuses = service.start.statuses()
    refused = [text for status, text in service.start.heard if status == 503]
    assert set(statuses) <= {503, 200, "ConnectError"}, statuses
    assert all("the service starts" in json.loads(text)["error"]["message"] for text in refused)


def test_the_admin_key_is_in_no_process_of_the_service(service):
    processes = [psutil.Process(service.pid), *children(service)]
    assert len(processes) > 10
    # The start-up command itself was given it so.
    having = [p.cmdline() for p in processes[1:] if KEY.encode() in Path(f"/proc/{p.pid}/environ").read_bytes()]
    assert not having
    (file,) = service.folder.glob("admin.key")
    assert file.stat().st_mode & 0o077 == 0
    assert service.folder.stat().st_mode & 0o077 == 0


def test_no_hostile_request_breaks_the_service_or_gets_more_than_an_answer(client, service, capsys):
    settled(client)
    engines = {process.pid for process in children(service, "VLLM::EngineCor")}
    cases = hostile.cases()
    assert len(cases) >= 2500
    logs = log_sizes(service)
    done = send_all(URL, cases, HANG_S)
    broken = [
        (sent.case.name, repr(sent.came), sent.text[:200])
        for sent in done
        if not isinstance(sent.came, int) or sent.came >= 500
    ]
    assert not broken, f"{len(broken)} of {len(done)}: {broken[:20]}"
    leaks = [(sent.case.name, sent.text[:300]) for sent in done if sent.came >= 400 and LEAK.search(sent.text)]
    assert not leaks, leaks[:10]
    assert {process.pid for process in children(service, "VLLM::EngineCor")} == engines, "no engine was replaced"
    assert complete(client)["usage"]["completion_tokens"] == 8
    seconds = sorted((sent.took_s, sent.case.name) for sent in done)
    refused = [sent for sent in done if sent.came >= 400]
    refused_p99_s = sorted(sent.took_s for sent in refused)[len(refused) * 99 // 100]
    with capsys.disabled():
        p99_s = seconds[len(seconds) * 99 // 100][0]
        print(f"\nhostile requests: {len(done)}, p99 {p99_s:.2f} s, slowest {seconds[-5:]}")
        print(
            f"refused: {len(refused)}, p99 {refused_p99_s:.2f} s, slowest {max(sent.took_s for sent in refused):.1f} s"
        )
    assert seconds[-1][0] < HANG_S
    # What is asked of the service, and five times what idle cores take: refusals queue behind the answers of six clients, so
    # that other work on two cores makes them as much slower as it takes of the cores, and there is no more of it than that.
    assert refused_p99_s < 1.0
    assert not tracebacks(service, logs)
    access, other = [], 0
    for path, text in new_text(service, logs).items():
        if path.name.startswith("access_"):
            access += [word for line in text.splitlines() if (word := re.search(r" id=(\S+)", line)[1])]
        elif path.name.startswith(("worker-", "replica_")):  # and not Ray's own, which count and tick
            other += len(text.splitlines())
    told = collections.Counter(access)
    generating = [s for s in refused if s.case.path.endswith("/completions") and "request_id" in s.text]
    ids = [found[1] for sent in generating if (found := re.search(r'"request_id":"([0-9a-f-]{36})"', sent.text))]
    assert len(ids) > len(refused) / 2
    lines = collections.Counter(told[each] for each in ids)
    assert set(lines) <= {0, 1}, "one line for each, and none for what HAProxy refuses"
    assert lines[1] > 0.9 * len(ids), lines
    assert other < len(refused), f"{other} lines beside the access log's"


def test_no_request_made_from_the_openapi_document_gets_a_server_error(client, tmp_path):
    document = client.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize"} <= set(document["paths"])
    for schema in document["components"]["schemas"].values():
        fields = schema.get("properties", {})
        if {"model", "max_tokens", "n"} <= set(fields):  # what an answer may cost is not the question here
            fields["model"] = {"const": MODEL}
            fields["n"] = {"type": "integer", "maximum": 4}
            fields["max_tokens"] = {"type": "integer", "maximum": 8}
            schema["required"] = [*schema.get("required", []), "model", "max_tokens"]
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    # fmt: off
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", str(tmp_path / "openapi.json"), "--url", URL, "--seed", "1",
        "--phases", "examples,coverage,fuzzing", "--max-examples", "40", "--checks", "not_a_server_error",
        "--request-timeout", str(HANG_S), "--suppress-health-check", "all", "--no-color",
    ]
    # fmt: on
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert complete(client)["usage"]["completion_tokens"] == 8


def test_a_grammar_costs_its_own_request_and_no_other(client, service, capsys):
    def ask(times, name, **constraint):
        body = {"model": MODEL, "prompt": "x", "max_tokens": 3, "structured_outputs": constraint}
        began_s = time.monotonic()
        answer = httpx.post(f"{URL}/v1/completions", json=body, timeout=120, trust_env=False)
        times[name] = answer.status_code, round(time.monotonic() - began_s, 2)
        return answer

    times = {}
    for _ in range(2):  # the process that tries grammars starts with the first of them; at both replicas
        ask(times, "first", regex="[d-f]{3}")
    assert ask(times, "too large", choice=[f"{i:03d}" + "y" * 4997 for i in range(100)]).status_code == 400
    heavy = [
        threading.Thread(
            target=ask, args=(times, f"heavy {k}"), kwargs={"choice": [f"{k}{i:02d}" + "y" * 500 for i in range(64)]}
        )
        for k in range(6)
    ]
    for each in heavy:
        each.start()
    time.sleep(0.3)
    answer = ask(times, "three letters", regex="[a-c]{3}")
    began_s = time.monotonic()
    assert complete(client)["usage"]["completion_tokens"] == 8
    times["neighbour"] = 200, round(time.monotonic() - began_s, 2)
    behind = [f"heavy {k}" for k in range(6) if f"heavy {k}" not in times]
    for each in heavy:
        each.join()
    with capsys.disabled():
        print(f"\ngrammars: {times}")
    assert re.fullmatch("[a-c]{3}", answer.json()["choices"][0]["text"])
    assert behind, "three letters and a request without a grammar wait behind no heavy one"
    assert {status for status, _ in times.values()} <= {200, 400}


def test_errors_are_in_openais_format(client):
    for method, path in (("GET", "/v1/none"), ("GET", "/v1/completions"), ("POST", "/status"), ("BREW", "/v1/models")):
        response = client.request(method, path)
        assert response.status_code in (404, 405)
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code", "request_id"}
        assert error["request_id"] == response.headers["x-request-id"]


# -- disclosure --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("extra", [{}, {"n": 2}, {"logprobs": 1}], ids=["plain", "two samples", "log-probabilities"])
@pytest.mark.parametrize("stream", [None, {}, {"include_usage": True}], ids=["whole", "streamed", "usage asked for"])
def test_every_answer_discloses(client, route, extra, stream):
    chat = route.endswith("chat/completions")
    if chat and "logprobs" in extra:
        extra = {"logprobs": True, "top_logprobs": 1}
    body = {"model": MODEL, "max_tokens": 6, "temperature": 1, "ignore_eos": True, **extra}
    body |= {"messages": [{"role": "user", "content": "A king"}]} if chat else {"prompt": "A king"}
    if stream is None:
        usage = client.post(route, json=body).json()["usage"]
    else:
        text = client.post(route, json={**body, "stream": True, "stream_options": stream or None}).text
        events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
        assert text.endswith("data: [DONE]\n\n")
        usage = [event["usage"] for event in events if event.get("usage")][-1]
    tokens = usage["precision_tokens"]["completion"]
    assert tokens["fp16"] + tokens["fp8"] == 6 * extra.get("n", 1)


# -- ports, keys -------------------------------------------------------------------------------------------------------


def listening(service):
    """(address, port, process) of everything that the service listens on."""
    found = []
    for process in [psutil.Process(service.pid), *children(service)]:
        with contextlib.suppress(psutil.Error):
            found += [
                (connection.laddr.ip, connection.laddr.port, process)
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
    return found


@pytest.mark.skipif(resolve("auto") != "cpu", reason="ranks on GPUs find each other by the node's address")
def test_all_is_listened_for_on_loopback_but_one_port_of_each_serve_replica(service):
    open_ports = listening(service)
    assert PORT in {port for _, port, _ in open_ports}
    elsewhere = [each for each in open_ports if each[0] not in LOCAL]
    # Serve's gRPC server between deployments, which takes no address; nothing here calls it.
    replicas = collections.Counter(process for _, _, process in elsewhere)
    assert all("ServeReplica" in process.cmdline()[0] for process in replicas), elsewhere
    assert set(replicas.values()) <= {1}, elsewhere


def test_the_admin_routes_want_the_key_and_the_others_do_not(client):
    for path in ("/admin/directive", "/admin/reload", "/control/admin/directive"):
        assert client.post(path, json={"mode": "fp8"}).status_code == 401
        assert client.post(path, json={"mode": "fp8"}, headers={"Authorization": "Bearer x"}).status_code == 401
    assert client.get("/status").status_code == client.get("/decisions").status_code == 200
    assert client.post("/admin/directive", json={"mode": "fp8"}, headers=ADMIN).status_code == 200
    assert client.post("/admin/directive", json={"mode": "auto"}, headers=ADMIN).status_code == 200


# -- clients -----------------------------------------------------------------------------------------------------------


def begin(tokens=900, prompt="Long ago"):
    """A stream of which nothing has been read but its head."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=90)
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def test_clients_that_do_not_read_do_not_hurt_a_neighbour(client):
    slow = [begin(prompt=f"{i} slow") for i in range(8)]
    try:
        for _ in range(5):
            assert complete(client)["usage"]["completion_tokens"] == 8
    finally:
        for connection, response in slow:
            response.close()
            connection.close()
    assert wait_until(lambda: all(r["running"] == 0 for r in status(client)["replicas"]), 30)


def test_a_thousand_streams_at_once_are_all_answered_whole(client, service, tmp_path):
    settled(client)
    bodies = [json.dumps({"model": MODEL, "prompt": f"{n} foxes", "max_tokens": 16, "ignore_eos": True, "stream": True,
                          "stream_options": {"include_usage": True}}) for n in range(64)]  # fmt: skip
    plan = stream_client.Plan(
        bodies, streams=1000, start_for_s=HANG_S, max_requests=1000, limit_s=4 * HANG_S, stall_s=3 * HANG_S
    )
    load = stream_client.finish(stream_client.start(URL, "/v1/completions", plan, tmp_path / "requests"), 5 * HANG_S)
    came = collections.Counter((record.kind, record.status, record.tokens) for record in load.records)
    assert came == {("ok", 200, 16): 1000}, load.errors[:3]
    settled(client)


def test_half_a_request_costs_nobody_anything(client):
    halves = [socket.create_connection(("127.0.0.1", PORT)) for _ in range(50)]
    try:
        for each in halves:
            each.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        assert complete(client)["usage"]["completion_tokens"] == 8
        assert all(r["path"]["in_path"] == 0 for r in status(client)["replicas"])
    finally:
        for each in halves:
            each.close()


# -- dead and hung processes -------------------------------------------------------------------------------------------


class Streams:
    """Streams that are read in threads; how each of them ended."""

    def __init__(self, count, tokens=700):
        self.tokens = tokens
        self.first = [threading.Event() for _ in range(count)]
        self.ends = [None] * count
        self.ended_s = [None] * count
        self.threads = [threading.Thread(target=self._read, args=(i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()
        assert all(event.wait(60) for event in self.first)

    def _read(self, number):
        connection, response = begin(self.tokens, f"{number} ravens")
        text = b""
        try:
            while part := response.read1(4096):
                text += part
                self.first[number].set()
            whole = text.rstrip().endswith(b"data: [DONE]")
            self.ends[number] = "error event" if b'data: {"error"' in text else "whole" if whole else "closed"
        except (OSError, http.client.HTTPException):
            self.ends[number] = "closed"
        finally:
            self.ended_s[number] = time.monotonic()
            self.first[number].set()
            connection.close()

    def join(self):
        for thread in self.threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self.threads), "a stream hangs"
        return collections.Counter(self.ends)


class Asked:
    """One request of a load, and how it ended."""

    def __init__(self, number):
        self.id = f"load-{number}"
        self.status, self.end = None, None
        body = {"model": MODEL, "max_tokens": 60, "ignore_eos": True}
        chat = {**body, "messages": [{"role": "user", "content": f"{number} owls"}]}
        plain = {**body, "prompt": f"{number} owls"}
        # The short way of plain streams, vLLM's own generators, and answers in one piece.
        self.path, self.body = [
            ("/v1/completions", {**plain, "stream": True}),
            ("/v1/completions", {**plain, "stream": True, "n": 2}),
            ("/v1/chat/completions", {**chat, "stream": True, "logprobs": True}),
            ("/v1/completions", plain),
            ("/v1/chat/completions", chat),
        ][number % 5]

    def ask(self):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=90)
        try:
            headers = {"Content-Type": "application/json", "X-Request-Id": self.id}
            connection.request("POST", self.path, json.dumps(self.body), headers)
            response = connection.getresponse()
            self.status, text = response.status, response.read()
            error = b'data: {"error"' in text
            whole = text.endswith(b"data: [DONE]\n\n") if self.body.get("stream") else self.status == 200
            self.end = "error event" if error else "whole" if whole else text.decode()
        except (OSError, http.client.HTTPException) as error:
            self.end = repr(error)
        finally:
            connection.close()

    @property
    def failed(self):
        return self.status != 429 and self.end != "whole"


class Load:
    """So many clients that ask one request after the other, in threads."""

    def __init__(self, clients):
        self.asked = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def _run(self):
        while not self._ended.is_set():
            with self._lock:
                asked = Asked(len(self.asked))
                self.asked.append(asked)
            asked.ask()

    def done(self):
        return sum(asked.end is not None for asked in self.asked)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        for thread in self._threads:
            thread.join()


def under_way(service, replica, wall_s):
    """Ids of the requests that were at a replica at this time, by its access log."""
    (path,) = service.folder.rglob(f"access_{replica}.log")
    found = set()
    for line in path.read_text().splitlines():
        said = dict(word.split("=", 1) for word in shlex.split(line))
        ended_s = datetime.datetime.fromisoformat(said["time"]).timestamp()
        if ended_s - float(said["total_ms"]) / 1e3 <= wall_s <= ended_s:
            found.add(said["id"])
    return found


def test_while_an_engine_dies_under_load_only_what_was_in_it_fails_and_nobody_hears_a_500(client, service, capsys):
    settled(client)
    look(service)
    logs = log_sizes(service)
    with Load(8) as load:
        assert wait_until(lambda: load.done() >= 40, 60, 0.01)
        assert wait_until(lambda: all(r["running"] for r in status(client)["replicas"]), 30, 0.01), "both have some"
        children(service, r"VLLM::EngineCor")[0].kill()
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
    assert not tracebacks(service, logs)
    settled(client)


@pytest.mark.parametrize("victim", ["the replica's process", "its engine core"])
def test_what_dies_in_mid_stream_ends_its_own_streams_and_no_others(client, service, victim):
    settled(client)
    streams = Streams(8)
    engine_core = victim == "its engine core"
    found = children(service, r"VLLM::EngineCor") if engine_core else replica_processes(service)
    look(service)
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


def test_a_killed_haproxy_is_back_within_two_seconds(client, service):
    settled(client)
    for process in [p for p in children(service, r"haproxy") if p.name() == "haproxy"]:
        process.kill()
    killed_s = time.monotonic()

    def back():
        with contextlib.suppress(httpx.HTTPError):
            return client.get("/v1/models").status_code == 200
        return False

    assert wait_until(back, 20, 0.05)
    assert time.monotonic() - killed_s < 2
    settled(client)


def test_an_engine_that_dies_while_nobody_asks_shows_in_the_status_within_five_seconds(client, service):
    settled(client)
    look(service)
    children(service, r"VLLM::EngineCor")[0].kill()
    killed_s = time.monotonic()
    assert wait_until(lambda: "its engine has died" in faults(client), 5, 0.05), client.get("/status").text
    assert time.monotonic() - killed_s < 5
    settled(client)


def test_a_hung_engine_is_noticed_its_streams_hear_of_it_and_its_replica_is_replaced(client, service, capsys):
    settled(client)
    before = {r["id"] for r in status(client)["replicas"]}
    look(service)
    engine = children(service, r"VLLM::EngineCor")[0]
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
    look(service)
    replica = replica_processes(service)[0]
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
    look(service)
    (controller,) = children(service, r"^ray::ControllerActor")
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
    assert len(children(service, r"^ray::ControllerActor")) == 1
    assert status(client)["epoch"] > epoch


def test_the_control_routes_answer_when_no_replica_is_up(client, service):
    settled(client)
    look(service)
    for process in replica_processes(service):
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


# -- the stop ----------------------------------------------------------------------------------------------------------


def test_a_signal_to_the_whole_process_group_stops_it_in_order_and_nothing_is_left(client, service, capsys):
    settled(client)
    look(service)
    streams = Streams(2, tokens=300)
    with Poll() as poll:
        began_s = time.monotonic()
        os.killpg(service.pid, signal.SIGTERM)
        assert service.wait(120) == 0
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
    pids = {process.pid for process in service.family}
    assert not [path for path in Path("/tmp/ray").glob("session_2*") if int(path.name.rpartition("_")[2]) in pids]
