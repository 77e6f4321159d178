"""A node leaves a cluster: which node that is, and what is said when it does not leave in time."""

import re
import time
import warnings

import pytest

from deploy import leave
from deploy.leave import CannotLeave, Node, own

HEAD, WORKER, OTHER = Node("a1", "10.0.0.1", True), Node("b2", "10.0.0.2", False), Node("c3", "10.0.0.3", False)
REPLICA = "SERVE_REPLICA::nestedfp#NestedFPServer:fairytales-8m#abc"


def test_the_node_of_this_machine_is_found_by_its_address():
    assert own([HEAD, WORKER, OTHER], {"127.0.0.1", "10.0.0.2"}) == WORKER
    assert "127.0.0.1" in leave.own_addresses()


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [HEAD, OTHER],
            r"expected one living Ray node at the addresses of this machine \(10.0.0.2, 127.0.0.1\), got 0",
        ),
        ([HEAD, WORKER, Node("d4", "10.0.0.2", False)], "got 2; the cluster's nodes: 10.0.0.1, 10.0.0.2, 10.0.0.2"),
        ([Node("a1", "10.0.0.2", True)], "the node at 10.0.0.2 is the cluster's head, which cannot leave it"),
    ],
)
def test_where_no_node_can_leave_the_reason_is_said(nodes, message):
    with pytest.raises(CannotLeave, match=message):
        own(nodes, {"127.0.0.1", "10.0.0.2"})


@pytest.mark.filterwarnings("ignore")  # of Ray's imports
def test_where_nobody_answers_that_is_said_at_once(monkeypatch, capsys):
    pytest.importorskip("ray._private.services")  # which takes seconds
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    began_s = time.monotonic()
    assert leave.main(["--within", "60"]) == 2
    assert time.monotonic() - began_s < leave.RAY_TIMEOUT_S + 10
    assert re.match(r"error: no cluster of Ray's answers \(.*\); set RAY_ADDRESS", capsys.readouterr().err)


def test_replicas_and_haproxy_keep_a_node_and_the_controller_does_not():
    proxy = f"SERVE_PROXY_ACTOR-{'0' * 56}"
    controller = "SERVE_DEPLOYMENT_ACTOR::nestedfp::x::1::nestedfp_controller"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's imports
        assert leave.serving(["SERVE_CONTROLLER_ACTOR", REPLICA, controller, "", proxy]) == [proxy, REPLICA]


@pytest.mark.parametrize(
    ("looks", "within_s", "status", "said"),
    [
        ([[REPLICA], ConnectionError("the head restarts"), []], 60, 0, "left: no replica is here"),
        ([[REPLICA]] * 99, 0.5, 1, f"the node still has {REPLICA}; what runs on it ends with it"),
    ],
)
def test_the_wait_ends_with_the_last_replica_or_with_the_time_and_says_which(
    monkeypatch, capsys, looks, within_s, status, said
):
    def left():
        if isinstance(look := looks.pop(0), Exception):
            raise look
        return look

    monkeypatch.setattr(leave, "LOOK_EVERY_S", 0.01)
    assert leave.wait(left, time.monotonic() + within_s) == status
    assert said in "".join(capsys.readouterr())
