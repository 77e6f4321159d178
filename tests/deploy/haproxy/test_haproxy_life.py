"""HAProxy listens on loopback alone, and ends with its manager, so that the next one has the port."""

import psutil
import pytest
from haproxy_calls import APP, answers, in_front, says, up
from haproxy_run import haproxies, lives, ok, render
from live_service import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own


def test_nothing_listens_beyond_loopback_and_the_admin_socket_is_private(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (_, port):
        up(port)
        (running_one,) = haproxies(folder)
        listening = [c.laddr for c in running_one.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert [(address.ip, address.port) for address in listening] == [("127.0.0.1", port)]
        assert (folder / "admin.sock").stat().st_mode & 0o077 == 0
        assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("hangs", [False, True], ids=["which serves", "which hangs"])
def test_a_manager_that_dies_leaves_no_haproxy_behind_and_the_next_one_has_the_port(folder, replicas, hangs):
    with in_front(folder, app=[replicas(ok("old"))]) as (node, port):
        up(port)
        (left,) = haproxies(folder)
        if hangs:
            left.suspend()
        node.kill()
        assert wait_until(lambda: not lives(left), 30, 0.02)
        render(folder, port, {APP: ("/", [replicas(ok("new")).port])})
        node.start_manager()
        assert wait_until(lambda: says(port, b"new"), 20, 0.05)
        assert wait_until(lambda: answers(port), 2)


def test_a_new_haproxy_keeps_the_replicas_that_a_build_does_not_name(folder, replicas):
    with in_front(folder, app=[replicas(ok("in"))]) as (node, port):
        up(port)
        render(folder, port, {APP: ("/", [])})
        node.start_manager()
        assert wait_until(lambda: says(port, b"in"), 20, 0.05)
