"""HAProxy reloaded while it serves: replicas come and go, and no client notices."""

import contextlib
import http.client
import threading
import time

import pytest
from haproxy_calls import APP, CONTROL, answers, ask, in_front, refuses, says, up
from haproxy_run import haproxies, lives, ok, render
from live_service import wait_until

from deploy import environment

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own


def test_a_reload_drops_nothing_and_starts_no_second_haproxy(folder, replicas):
    with in_front(folder, app=[replicas(ok("old"))]) as (node, port):
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
            manager = node.reload(first.pid)
            assert wait_until(lambda: ask(port)[2] == b"new", 20, 0.05)
            assert wait_until(lambda: not lives(first), 30)
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
    with in_front(folder, app=[old]) as (node, port):
        up(port)
        first = haproxies(folder)[0]
        render(folder, port, {CONTROL: ("/control", [control.port])})
        node.reload(first.pid)
        assert wait_until(lambda: not lives(first), 30, 0.02)
        assert wait_until(lambda: answers(port, "/control/status"), 30, 0.02)
        assert [ask(port)[2] for _ in range(5)] == [b"old"] * 5
        second = haproxies(folder)[0]
        render(folder, port, {APP: ("/", []), CONTROL: ("/control", [control.port])})
        node.reload(second.pid)
        assert wait_until(lambda: not lives(second), 30, 0.02)
        assert [ask(port)[2] for _ in range(5)] == [b"old"] * 5
        third = haproxies(folder)[0]
        render(folder, port, {APP: ("/", [replicas(ok("new")).port]), CONTROL: ("/control", [control.port])})
        node.reload(third.pid)
        assert wait_until(lambda: not lives(third), 30, 0.02)
        assert wait_until(lambda: says(port, b"new"), 30, 0.02)
        assert [ask(port)[2] for _ in range(5)] == [b"new"] * 5, "what Serve names takes its place"


def test_the_replica_that_goes_takes_the_requests_until_the_new_one_has_answered_a_check(folder, replicas):
    with in_front(folder, app=[replicas(ok("old"))]) as (node, port):
        up(port)
        first = haproxies(folder)[0]
        (closed,) = environment.free_ports(1)
        render(folder, port, {APP: ("/", [closed])})
        node.reload(first.pid)
        assert wait_until(lambda: not lives(first), 30, 0.02)
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
        assert wait_until(lambda: refuses(port), 30, 0.02)


def test_the_next_request_on_a_connection_that_was_open_at_a_reload_comes_to_the_replicas_of_today(folder, replicas):
    length = 64 << 20  # more than all buffers on the way hold
    old = replicas(lambda path, headers, body: (200, {}, b"o" * length))
    with in_front(folder, app=[old]) as (node, port):
        up(port)
        first = haproxies(folder)[0]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            answer = connection.getresponse()
            render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
            node.reload(first.pid)
            assert wait_until(lambda: len(haproxies(folder)) == 2, 30, 0.02)
            assert wait_until(lambda: says(port, b"new"), 30, 0.02)
            assert len(answer.read()) == length, "a stream that was in flight ends whole"
            old.stop()
            connection.request("GET", "/")
            second = connection.getresponse()
            assert (second.status, second.read()) == (200, b"new")


def test_a_connection_that_was_idle_at_a_reload_takes_one_more_request_and_is_told_to_close(folder, replicas):
    with in_front(folder, app=[replicas(ok("old"))]) as (node, port):
        up(port)
        first = haproxies(folder)[0]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            assert connection.getresponse().read() == b"old"
            render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
            node.reload(first.pid)
            assert wait_until(lambda: says(port, b"new"), 30, 0.02)
            connection.request("GET", "/")
            answer = connection.getresponse()
            assert (answer.status, answer.read(), answer.getheader("connection")) == (200, b"new", "close")
        assert wait_until(lambda: not lives(first), 30), "nothing keeps it"
