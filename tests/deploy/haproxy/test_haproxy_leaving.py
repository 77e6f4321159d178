"""The HAProxy of a node that is drained: it serves on, and has its clients go elsewhere."""

import http.client
import warnings

from haproxy_calls import ask
from haproxy_run import ok, render, running
from live_service import wait_until

from deploy.haproxy import targets


def test_ray_serve_says_so_in_these_words():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's imports
        from ray.serve._private.constants import DRAINING_MESSAGE
    assert DRAINING_MESSAGE == targets.LEAVES


def heard(port, path="/v1/models"):
    """(status, whether the client may ask again on the same connection, body); None: nobody listens, or the port changes hands."""
    try:
        status, headers, body = ask(port, path)
    except (OSError, http.client.HTTPException):
        return None
    return status, headers.get("connection") != "close", body


def test_clients_of_a_node_that_is_drained_are_served_and_told_to_go(folder, replicas):
    backends = {"app": ("/", [replicas(ok("served")).port])}
    with running(folder, backends) as (node, port):
        served = (200, True, b"served")
        assert wait_until(lambda: heard(port) == served, 30), heard(port)
        assert ask(port, "/-/healthz")[0] == 200
        render(folder, port, backends, leaves=True)
        node.start_manager()
        assert wait_until(lambda: heard(port, "/-/healthz") == (503, False, targets.LEAVES.encode()), 30)
        assert wait_until(lambda: heard(port) == (200, False, b"served"), 30), heard(port)
        render(folder, port, backends)  # Serve has thought better of it
        node.start_manager()
        assert wait_until(lambda: heard(port) == served, 30), heard(port)
