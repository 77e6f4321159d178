"""The HAProxy of a node that is drained: it serves on, and has its clients go elsewhere."""

import http.client
import tempfile
import warnings
from pathlib import Path

import pytest
from haproxy_run import Replica, ok, render, running
from live_service import wait_until

from deploy.haproxy import targets

PATH = "/v1/models"


@pytest.fixture
def replica():
    found = Replica(ok("served"))
    yield found
    found.stop()


@pytest.fixture
def folder():
    """Not tmp_path: HAProxy's sockets need a short one."""
    with tempfile.TemporaryDirectory(prefix="nfp-", dir="/tmp") as path:
        yield Path(path)


def ask(port, path=PATH):
    """(status, whether the client may ask again on the same connection, body); None: nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, not answer.will_close, answer.read()
    except ConnectionRefusedError:
        return None
    finally:
        connection.close()


def test_ray_serve_says_so_in_these_words():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's imports
        from ray.serve._private.constants import DRAINING_MESSAGE
    assert DRAINING_MESSAGE == targets.LEAVES


def test_clients_of_a_node_that_is_drained_are_served_and_told_to_go(folder, replica):
    backends = {"app": ("/", [replica.port])}
    with running(folder, backends) as (node, port):
        served = (200, True, b"served")
        assert wait_until(lambda: ask(port) == served, 10), ask(port)
        assert ask(port, "/-/healthz")[0] == 200
        render(folder, port, backends, leaves=True)
        node.start_manager()
        assert wait_until(lambda: ask(port, "/-/healthz") == (503, False, targets.LEAVES.encode()), 10)
        assert wait_until(lambda: ask(port) == (200, False, b"served"), 10), ask(port)
        render(folder, port, backends)  # Serve has thought better of it
        node.start_manager()
        assert wait_until(lambda: ask(port) == served, 10), ask(port)
