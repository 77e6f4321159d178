"""A node leaves a cluster: which node that is, and what is said when it does not leave in time."""

import subprocess
import sys
import time
import warnings

import pytest
from processes import ROOT
from ray_nodes import free_port

from deploy import leave
from deploy.leave import CannotLeave, Node, own

HEAD, WORKER, OTHER = Node("a1", "10.0.0.1", True), Node("b2", "10.0.0.2", False), Node("c3", "10.0.0.3", False)
REPLICA = "SERVE_REPLICA::nestedfp#NestedFPServer:fairytales-8m#abc"


def test_the_node_of_this_machine_is_found_by_its_address():
    assert own([HEAD, WORKER, OTHER], {"127.0.0.1", "10.0.0.2"}) == WORKER


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [HEAD, OTHER],
            r"expected one living Ray node at the addresses of this machine \(10.0.0.2, 127.0.0.1\), got 0",
        ),
        ([HEAD, WORKER, Node("d4", "10.0.0.2", False)], "got 2; the cluster's nodes: 10.0.0.1, 10.0.0.2, 10.0.0.2"),
        ([], "the cluster's nodes: none"),
        ([Node("a1", "10.0.0.2", True)], "the node at 10.0.0.2 is the cluster's head, which cannot leave it"),
    ],
)
def test_where_no_node_can_leave_the_reason_is_said(nodes, message):
    with pytest.raises(CannotLeave, match=message):
        own(nodes, {"127.0.0.1", "10.0.0.2"})


def test_this_machine_has_its_loopback_address():
    assert "127.0.0.1" in leave.own_addresses()


def test_replicas_and_haproxy_keep_a_node_and_the_controller_does_not():
    proxy = f"SERVE_PROXY_ACTOR-{'0' * 56}"
    names = [
        "SERVE_CONTROLLER_ACTOR",
        REPLICA,
        "SERVE_DEPLOYMENT_ACTOR::nestedfp::x::1::nestedfp_controller",
        "",
        proxy,
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's imports
        assert leave.serving(names) == [proxy, REPLICA]


class Told:
    """A cluster whose head answers one look after another with these, and then with the last."""

    def __init__(self, *looks):
        self._looks = list(looks)

    def remaining(self, node):
        assert node is WORKER
        look = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        if isinstance(look, Exception):
            raise look
        return look


@pytest.mark.parametrize(
    ("looks", "within_s", "status", "said"),
    [
        ([[REPLICA], ConnectionError("the head restarts"), []], 60, 0, "left after"),
        (
            [[REPLICA]],
            0.5,
            1,
            f"error: the time is over, and the node still has {REPLICA}; what runs on it ends with it",
        ),
        ([ConnectionError("no head")], 0.5, 1, "error: the time is over, and the node still has no head"),
    ],
)
def test_the_wait_ends_with_the_last_replica_or_with_the_time_and_says_which(
    monkeypatch, capsys, looks, within_s, status, said
):
    monkeypatch.setattr(leave, "LOOK_EVERY_S", 0.01)
    assert leave.wait(Told(*looks), WORKER, time.monotonic() + within_s) == status
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--address", "127.0.0.1:{free}"], "error: no Ray cluster at "),
        (["--address", "127.0.0.1:{free}"], ":{free} ("),
        (["--address", "nowhere"], "error: Invalid address format: nowhere"),
        (["--within", "5"], "expected more than 15 seconds, got 5"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(arguments, message):
    free = free_port()
    command = [sys.executable, "-m", "deploy.leave", *(word.format(free=free) for word in arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert message.format(free=free) in done.stderr.splitlines()[-1], done.stderr
