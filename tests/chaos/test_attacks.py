"""The attackers against a real HTTP server in a thread."""

import http.server
import threading
import time

import pytest

from chaos.abuse.attacks import send_all, summary
from chaos.abuse.hostile import HostileRequest


@pytest.fixture
def slow_server():
    """Answers every POST with 400 after a tenth of a second; yields its URL."""

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            time.sleep(0.1)
            self.send_response(400)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def cases(count):
    return [HostileRequest(f"case {number}", "POST", "/", (), b"") for number in range(count)]


def test_all_cases_are_sent_where_there_is_no_limit(slow_server):
    done = send_all(slow_server, cases(6), 10.0, workers=3)
    assert sorted(sent.case.name for sent in done) == [f"case {number}" for number in range(6)]
    assert {sent.came for sent in done} == {400}
    assert summary(done).startswith("6 sent: 6 4xx")


def test_no_case_is_begun_after_the_limit_and_those_begun_are_answered(slow_server):
    began_s = time.monotonic()
    done = send_all(slow_server, cases(10_000), 10.0, workers=2, begin_for_s=3.0)
    assert time.monotonic() - began_s < 60, "all of them would take 500 s"
    assert 0 < len(done) <= 62, "two workers, a tenth of a second each"
    assert {sent.came for sent in done} == {400}
