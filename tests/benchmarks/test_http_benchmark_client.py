"""The streaming load client against a small server of raw sockets that cuts its answers where it likes."""

import contextlib
import json
import socket
import statistics
import threading
import time

import pytest

from benchmarks.client import stream_client
from benchmarks.client.stream_client import LoadPlan

TOKENS = 4
EVENTS = [b'data: {"choices":[{"text":"x"}],"usage":null}\n\n'] * TOKENS
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ERROR = b'{"error":{"message":"full","code":503}}'


def chunked(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


WHOLE = HEAD + chunked(*EVENTS, USAGE, DONE) + b"0\r\n\r\n"


class Server:
    """Answers request number n of a connection with ``answer(connection, n)``; counts connections and requests."""

    def __init__(self, answer):
        self._answer = answer
        self.connections, self.bodies = 0, []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        data, number = b"", 0
        with connection, contextlib.suppress(OSError):
            while True:
                while b"\r\n\r\n" not in data:
                    if not (piece := connection.recv(65536)):
                        return
                    data += piece
                head, data = data.split(b"\r\n\r\n", 1)
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                while len(data) < length:
                    data += connection.recv(65536)
                body, data = data[:length], data[length:]
                self.bodies.append(json.loads(body))
                if self._answer(connection, number) is False or b"Connection: close" in head:
                    return
                number += 1

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)  # close() alone leaves it listening while another thread accepts
        self._socket.close()


def run(tmp_path, answer, **plan):
    server = Server(answer)
    try:
        plan = LoadPlan(**{"bodies": ['{"n":0}', '{"n":1}'], "limit_s": 5.0, **plan})
        process = stream_client.start(server.url, "/v1/completions", plan, tmp_path / "requests")
        return stream_client.finish(process, 20), server
    finally:
        server.close()


def whole(connection, _):
    connection.sendall(WHOLE)


def in_pieces(connection, _):
    # One byte at a time over the chunks' borders, and a chunk that cuts an event in two.
    answer = HEAD + chunked(b"".join(EVENTS)[:17], b"".join(EVENTS)[17:], USAGE, DONE) + b"0\r\n\r\n"
    for start in range(0, len(answer), 7):
        connection.sendall(answer[start : start + 7])


@pytest.mark.parametrize("answer", [whole, in_pieces])
def test_tokens_are_counted_however_the_answer_is_cut(tmp_path, answer):
    load, server = run(tmp_path, answer, streams=2, start_for_s=3, max_requests=6)
    assert [(r.kind, r.status, r.events, r.tokens) for r in load.records] == [("ok", 200, TOKENS, TOKENS)] * 6
    assert sum(count for _, count in load.bins) == 6 * TOKENS
    assert server.connections == 6
    assert [body["n"] for body in sorted(server.bodies, key=lambda body: body["n"])] == [0, 0, 0, 1, 1, 1]
    for r in load.records:
        assert load.start_s <= r.start_s <= r.first_s <= r.last_s <= r.end_s <= time.monotonic()


def test_an_open_loop_sends_each_request_when_it_is_due(tmp_path):
    due_s = [0.0, 0.1, 0.3, 0.6, 0.8, 1.1, 1.3]
    load, _ = run(tmp_path, whole, due_s=due_s)
    # They are told in the order in which they ended: of two that were late together either may be the first.
    assert sorted(round(r.due_s - load.start_s, 3) for r in load.records) == due_s
    late_s = [r.start_s - r.due_s for r in load.records]
    assert min(late_s) >= 0
    assert statistics.median(late_s) < 0.05, "a client that stands still for a moment is late with those due then"


def test_told_to_end_it_begins_no_more_requests_and_waits_for_those_in_flight(tmp_path):
    begun = threading.Event()

    def slowly(connection, _):
        connection.sendall(HEAD + chunked(EVENTS[0]))
        begun.set()
        time.sleep(0.5)
        connection.sendall(chunked(*EVENTS[1:], USAGE, DONE) + b"0\r\n\r\n")

    server = Server(slowly)
    try:
        plan = LoadPlan(['{"n":0}', '{"n":1}'], due_s=[0.0, 20.0], limit_s=40.0)
        process = stream_client.start(server.url, "/v1/completions", plan, tmp_path / "requests")
        assert begun.wait(5)
        process.terminate()
        load = stream_client.finish(process, 5)
    finally:
        server.close()
    assert [(r.kind, r.tokens) for r in load.records] == [("ok", TOKENS)]


def refusal(connection, _):
    connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n%s" % (len(ERROR), ERROR))


def broken_off(connection, _):
    connection.sendall(HEAD + chunked(*EVENTS))
    return False


def without_done(connection, _):
    connection.sendall(HEAD + chunked(*EVENTS) + b"0\r\n\r\n")


def error_event(connection, _):
    connection.sendall(HEAD + chunked(EVENTS[0], b"data: " + ERROR + b"\n\n", DONE) + b"0\r\n\r\n")


def no_http(connection, _):
    connection.sendall(b"220 smtp.example ESMTP\r\n\r\n")


def silent(connection, _):
    time.sleep(3)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal, "http_503"),
        (broken_off, "closed"),
        (without_done, "unfinished"),
        (error_event, "error_event"),
        (no_http, "malformed"),
        (lambda *_: False, "closed_unanswered"),
    ],
)
def test_what_goes_wrong_is_named(tmp_path, answer, kind):
    load, _ = run(tmp_path, answer, due_s=[0.0, 0.0])
    assert [r.kind for r in load.records] == [kind] * 2
    if kind in ("http_503", "error_event"):
        assert "full" in load.errors[0]


def test_a_server_that_is_not_there_is_asked_ten_times_a_second_and_no_more(tmp_path):
    server = Server(whole)
    server.close()
    plan = LoadPlan(["{}"], streams=1, start_for_s=1.0, limit_s=3)
    process = stream_client.start(server.url, "/", plan, tmp_path / "requests")
    load = stream_client.finish(process, 10)
    assert {r.kind for r in load.records} == {"connect"}
    assert 2 <= len(load.records) <= 11


def test_a_run_ends_in_time_and_what_is_in_flight_was_cut(tmp_path):
    began_s = time.monotonic()
    load, _ = run(tmp_path, silent, streams=3, start_for_s=0.2, limit_s=0.5)
    assert time.monotonic() - began_s < 3
    assert [r.kind for r in load.records] == ["cut"] * 3


def test_without_a_compiler_the_error_says_what_is_needed(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="needs a C\\+\\+ compiler"):
        stream_client.build()
