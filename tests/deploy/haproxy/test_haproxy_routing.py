"""Which replica HAProxy asks, and which one after it."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from haproxy_calls import ask, count, in_front, up
from haproxy_run import error_of, ok
from live_service import wait_until
from sim_builders import make_table, policy_config

from controller.messages import Directive
from deploy.access.admission import Admission, NoRoom
from deploy.access.peers import Elsewhere
from deploy.haproxy.haproxy_config import ATTEMPT_HEADER, ELSEWHERE_STATUS, RETRY_AFTER_S, Limits
from nestedfp.modes import DirectiveMode
from simulator.cluster.replica import Replica as SimReplica
from simulator.cluster.routing import LeastConnections
from simulator.engine.request import SimRequest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own


def elsewhere(path, headers, body):
    if path == "/up":
        return 200, {}, b""
    return ELSEWHERE_STATUS, {"Retry-After": "2"}, b'{"error": {}}'


def test_a_request_that_one_replica_sends_elsewhere_is_answered_by_the_other(folder, replicas):
    first, second = replicas(elsewhere), replicas(ok("second"))
    with in_front(folder, app=[first, second]) as (_, port):
        up(port, "/up")
        got = [ask(port, "/v1", "POST", b"x" * 1000, {ATTEMPT_HEADER: "forged"}) for _ in range(8)]
    assert {(status, body) for status, _, body in got} == {(200, b"second")}
    tried = [headers[ATTEMPT_HEADER] for path, headers in first.seen if path == "/v1"]
    answered = [headers[ATTEMPT_HEADER] for path, headers in second.seen if path == "/v1"]
    assert tried, "the first replica was asked as well"
    assert set(tried) <= set(answered), "both know the request by the same name"
    assert "forged" not in answered
    assert len(set(answered)) == 8


def test_whom_everybody_sends_elsewhere_hears_429_and_never_how_it_was_told(folder, replicas):
    with in_front(folder, app=[replicas(elsewhere), replicas(elsewhere)]) as (_, port):
        up(port, "/up")
        status, headers, _ = ask(port, "/v1", "POST", b"x")
    assert status == 429
    assert headers["retry-after"] == "2"


def test_the_second_sight_of_a_request_is_final(folder, replicas):
    def refusing():
        """Refuses all, as a full replica does: elsewhere at first sight, 429 at the second."""
        seen = Elsewhere()

        def answer(path, headers, body):
            if path == "/up":
                return 200, {}, b""
            raw = {name.encode(): value.encode() for name, value in headers.items()}
            if seen.may_go(raw, len(body)):
                return ELSEWHERE_STATUS, {}, b""
            return 429, {"Retry-After": "7"}, b'{"error": {"message": "full"}}'

        return answer

    both = [replicas(refusing()), replicas(refusing())]
    with in_front(folder, app=both) as (_, port):
        up(port, "/up")
        for each in both:
            each.seen.clear()
        status, headers, body = ask(port, "/v1", "POST", b"x")
    assert (status, headers["retry-after"], json.loads(body)["error"]["message"]) == (429, "7", "full")
    offered = [len(each.seen) for each in both]
    assert sum(offered) <= Limits().tries
    assert min(offered) >= 1, "both were asked before the client was refused"


def test_a_replica_that_ends_before_it_answers_gives_503_and_its_request_to_nobody_else(folder, replicas):
    def die(path, headers, body):
        if path == "/up":
            return 200, {}, b""
        raise ConnectionResetError

    both = [replicas(die), replicas(die)]
    with in_front(folder, app=both) as (_, port):
        up(port, "/up")
        for each in both:
            each.seen.clear()
        status, headers, body = ask(port, "/v1", "POST", b"x")
    assert (status, int(headers["retry-after"])) == (503, RETRY_AFTER_S)
    assert "ended before it answered" in error_of(body)["message"]
    assert sum(len(each.seen) for each in both) == 1


def test_control_routes_of_the_root_go_to_the_control_application(served):
    paths = ["/status", "/decisions?since=3", "/admin/directive", "/admin/reload", "/control/status"]
    assert {ask(served.port, path)[2] for path in paths} == {b"control"}
    others = ["/v1/models", "/statusx", "/x/status", "/admin", "/controlx"]
    assert {ask(served.port, path)[2] for path in others} == {b"app"}
    assert [path for path, _ in served.control.seen] == [
        "/control/status",
        "/control/decisions?since=3",
        "/control/admin/directive",
        "/control/admin/reload",
        "/control/status",
    ]


@pytest.mark.parametrize("path", ["/status", "/decisions?since=3", "/admin/directive", "/control/data", "/metrics"])
@pytest.mark.parametrize("slashes", ["/", "//"])
def test_a_slash_at_the_end_of_a_control_route_changes_nothing(served, path, slashes):
    for asked in (path, path.replace("?", f"{slashes}?") if "?" in path else path + slashes):
        assert ask(served.port, asked)[2] == b"control"
    plain, with_slash = [seen for seen, _ in served.control.seen]
    assert plain == with_slash


def test_the_root_leads_to_the_control_room_where_there_is_one(served, folder):
    for method in ("GET", "HEAD"):
        status, headers, _ = ask(served.port, "/", method)
        assert (status, headers["location"]) == (302, "/control/")
    assert ask(served.port, "/control/")[2] == ask(served.port, "/control")[2] == b"control"
    assert ask(served.port, "/", "POST", b"{}")[2] == b"app"
    with in_front(folder, app=[served.app]) as (_, port):
        up(port)
        assert ask(port, "/")[2] == b"app"


def test_the_simulator_sends_requests_where_haproxy_does(folder, replicas):
    """Nine requests that stay open, at replicas with room for one, two and nine: who is asked, in which order, who takes it."""
    rooms = (1, 2, 9)
    gate = threading.Event()
    asked: list[int] = []
    held: list[int] = []

    def holding(number, admission, seen):
        def answer(path, headers, body):
            if path == "/up":
                return 200, {}, b""
            asked.append(number)
            raw = {name.encode(): value.encode() for name, value in headers.items()}
            try:
                admission.enter()
            except NoRoom:
                return (ELSEWHERE_STATUS if seen.may_go(raw, len(body)) else 429), {}, b""
            held.append(number)
            gate.wait(60)
            return 200, {}, b""

        return answer

    servers = [replicas(holding(number, Admission(room, 1), Elsewhere())) for number, room in enumerate(rooms)]
    by_haproxy = []
    with in_front(folder, app=servers, limits=Limits()) as (_, port), ThreadPoolExecutor(9) as pool:
        up(port, "/up")
        first = (
            next(n for n, server in enumerate(servers) if count(server, "/up")) + 1
        ) % 3  # of equals: the others before
        for _ in range(9):
            asked.clear()
            held.clear()
            got = pool.submit(ask, port, "/v1", "POST", b"x", timeout_s=90)
            assert wait_until(lambda got=got: held or got.done(), 20, 0.01)
            by_haproxy.append((tuple(asked), 200 if held else got.result()[0]))
        gate.set()

    simulated = [SimReplica(str(i), make_table(), policy_config("static_fp16"), 0.0, n) for i, n in enumerate(rooms)]
    for replica in simulated:
        replica.take(0.0, Directive(epoch=1, mode=DirectiveMode.FP16, lease_s=2.0, reason="test", replicas=3))
    offers: list[int] = []
    for number, replica in enumerate(simulated):
        offer = replica.offer
        replica.offer = lambda *given, n=number, offer=offer: offers.append(n) or offer(*given)
    proxy = LeastConnections(2)  # as many as the node of these tests is told of
    for replica in simulated[first:] + simulated[:first]:
        proxy.add(replica)
    by_simulator = []
    for index in range(9):
        offers.clear()
        taken = proxy.send(0.0, SimRequest(index, 0.0, 10, 10))
        by_simulator.append((tuple(offers), 200 if taken else 429))
    assert by_simulator == by_haproxy
    assert {status for _, status in by_haproxy} == {200, 429}
