"""HAProxy killed, hung and left alone: who replaces it, who takes over from it, and that it ends with its node."""

import contextlib
import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from haproxy_calls import APP, answers, ask, count, in_front, says, up
from haproxy_life import family, haproxies, lives
from haproxy_run import error_of, ok, render
from live_service import wait_until
from ray_nodes import listens

from deploy.haproxy import launcher

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own


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

    old = replicas(answer)
    with in_front(folder, app=[old]) as (node, port), ThreadPoolExecutor(1) as pool:
        up(port)
        manager = psutil.Process(haproxies(folder)[0].ppid())
        time.sleep(launcher.STARTED_S + 0.1)  # one that ends sooner is taken for one that could not start
        for process in haproxies(folder):
            process.kill()
        killed_s = time.monotonic()
        assert wait_until(lambda: answers(port), 10, 0.02)
        assert time.monotonic() - killed_s < 2
        assert wait_until(lambda: not lives(manager), 5), "Ray Serve's manager is ended: it holds on to the dead one"
        (replacement,) = haproxies(folder)
        slow = pool.submit(ask, port, "/slow", timeout_s=40)
        assert wait_until(lambda: count(old, "/slow"), 10, 0.01)
        render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
        node.start_manager()
        assert wait_until(lambda: says(port, b"new"), 20, 0.05), "the next manager's HAProxy has the port"
        gate.set()
        assert slow.result()[::2] == (200, b"in"), "a request of the replacement ends well"
        assert wait_until(lambda: not lives(replacement), 10)


@pytest.mark.slow
def test_a_hung_haproxy_is_ended_and_replaced_within_fifteen_seconds(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (_, port):
        up(port)
        (hung,) = haproxies(folder)
        time.sleep(launcher.CHECK_EVERY_S + 1)  # checked once at least while it is well
        hung.suspend()
        stopped_s = time.monotonic()
        assert wait_until(lambda: not lives(hung), 20, 0.05)
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
        assert wait_until(lambda: says(port, b"new"), 20, 0.05)
        assert wait_until(lambda: not lives(left), 10, 0.05)
        (successor,) = haproxies(folder)
        assert wait_until(lambda: answers(port), 2)
        assert lives(successor)


def crash(folder):
    """End HAProxy together with the manager that started it, as Ray does."""
    (first,) = haproxies(folder)
    manager = psutil.Process(first.ppid())
    time.sleep(launcher.STARTED_S + 0.1)
    manager.kill()
    first.kill()


def heard(port, path):
    """What is answered; None while the port changes hands."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask(port, path)
    return None


def test_a_replacement_runs_what_was_in_force_and_not_what_serve_wrote_and_never_started(folder, replicas):
    """As at a shutdown under load: Serve writes that there is no application any more, and ends before it starts an HAProxy so."""
    replica = replicas(ok("in"))
    with in_front(folder, app=[replica]) as (_, port):
        up(port)
        (first,) = haproxies(folder)
        render(folder, port, {})
        crash(folder)
        assert wait_until(lambda: not lives(first), 10, 0.02)
        first_answer = wait_until(lambda: heard(port, "/v1/completions"), 10, 0.02)
        assert first_answer[::2] == (200, b"in"), "the replica still drains"
        replica.stop()
        assert wait_until(lambda: (heard(port, "/v1/completions") or [200])[0] != 200, 10, 0.05)
        status, headers, body = ask(port, "/v1/completions")
        assert (status, error_of(body)["code"], "retry-after" in headers) == (503, 503, True)


@pytest.mark.slow
def test_when_serve_is_shut_down_and_the_node_stays_the_port_is_free_soon(folder, replicas):
    """The manager kills its HAProxy and ends, as at a crash; but the replicas have gone too."""
    replica = replicas(ok("in"))
    with in_front(folder, app=[replica]) as (node, port):
        up(port)
        crash(folder)
        killed_s = time.monotonic()
        assert wait_until(lambda: answers(port), 10, 0.02), "one that may have crashed is replaced at once"
        assert time.monotonic() - killed_s < 2
        replica.stop()
        limit_s = launcher.GONE_AFTER_S + launcher.CHECK_EVERY_S + 5
        assert wait_until(lambda: not listens("127.0.0.1", port), limit_s)
        render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
        node.start_manager()
        assert wait_until(lambda: says(port, b"new"), 20, 0.05), "and the next deployment finds it so"


def test_who_is_taken_over_from_is_named_once():
    started, reloaded = ["haproxy", "-f", "c"], ["haproxy", "-f", "c", "-sf", "7", "-x", "s"]
    assert launcher.taking_over(started, []) == started
    assert launcher.taking_over(started, [8, 9]) == [*started, "-sf", "8", "9"]
    assert launcher.taking_over(reloaded, [7]) == reloaded
    assert launcher.taking_over(reloaded, [8, 7]) == ["haproxy", "-f", "c", "-sf", "8", "7", "-x", "s"]


def test_what_has_never_answered_starts_still_and_one_late_answer_is_no_hang():
    checks = launcher.Checks()
    assert not any(checks.hangs(False) for _ in range(10))
    assert not any(checks.hangs(answers) for answers in (True, False, False, True, False, False))
    assert checks.hangs(False)


def test_when_the_nodes_process_ends_haproxy_ends_and_nothing_stays_behind(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (node, port):
        up(port)
        time.sleep(launcher.STARTED_S + 0.1)
        assert family(folder)
        node.kill()
        assert wait_until(lambda: not family(folder), 5, 0.05), family(folder)
        with pytest.raises(OSError, match="refused"):
            ask(port)


@pytest.mark.slow
def test_a_replacement_ends_with_the_nodes_process_too(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (node, port):
        up(port)
        time.sleep(launcher.STARTED_S + 0.1)
        haproxies(folder)[0].kill()
        assert wait_until(lambda: answers(port), 5, 0.02)
        node.kill()
        assert wait_until(lambda: not family(folder), 5, 0.05), family(folder)
