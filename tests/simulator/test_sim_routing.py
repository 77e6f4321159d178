"""Whom a simulated request is offered to, and who takes it. tests/deploy/haproxy compares it with the real HAProxy.

Run: python -m pytest tests/simulator/test_sim_routing.py
"""

from collections.abc import Callable

import pytest
from sim_builders import make_table, policy_config

from controller.messages import Directive
from deploy.access.peers import RETRYABLE_BODY_BYTES
from nestedfp.modes import DirectiveMode
from simulator.cluster.replica import Replica
from simulator.cluster.routing import LeastConnections
from simulator.engine.request import SimRequest

TABLE = make_table(max_num_seqs=1000, max_model_tokens=50_000)


def make_replicas(*limits: int | None) -> list[Replica]:
    """Replicas with these admission limits that know of each other."""
    replicas = [Replica(f"r{i}", TABLE, policy_config("static_fp16"), 0.0, limit) for i, limit in enumerate(limits)]
    told = Directive(epoch=1, mode=DirectiveMode.AUTO, lease_s=2.0, reason="test", replicas=len(limits))
    for replica in replicas:
        replica.take(0.0, told)
    return replicas


def in_front(replicas: list[Replica]) -> Callable[..., list[str]]:
    """An HAProxy of their own: how to send it requests at one time; tells the replicas that took them, "" where none did."""
    proxy = LeastConnections(len(replicas))
    for replica in replicas:
        proxy.add(replica)

    def send(count: int, prompt_tokens: int = 10, first: int = 0, now_s: float = 0.0) -> list[str]:
        takers = []
        for index in range(first, first + count):
            request = SimRequest(index, now_s, prompt_tokens, 100)
            taken = proxy.send(now_s, request)
            inside = [each.name for each in replicas if request in (*each.engine.running, *each.engine.waiting)]
            assert bool(inside) == taken
            takers.append("".join(inside))
        return takers

    return send


def test_each_request_goes_to_the_replica_with_the_fewest_open_ones():
    replicas = make_replicas(*[None] * 5)
    for replica, held in zip(replicas, (3, 1, 4, 0, 5), strict=True):
        for index in range(held):
            assert replica.offer(0.0, SimRequest(100 + index, 0.0, 10, 100)) == "taken"
    send = in_front(replicas)
    assert send(4) == ["r3", "r1", "r3", "r1"]
    assert [replica.engine.ongoing for replica in replicas] == [3, 3, 4, 2, 5]
    assert len(set(send(5, first=50, now_s=60.0))) == 5, "all have answered, and equals take turns"


def test_what_one_replica_is_full_for_another_one_takes():
    replicas = make_replicas(2, 3)
    assert in_front(replicas)(6).count("") == 1
    assert [replica.engine.ongoing for replica in replicas] == [2, 3]
    # Each of the two counted half of the one that nobody took, and none of it at the second sight.
    assert sum(replica.snapshot(0.0).refused for replica in replicas) == 1


def test_a_request_that_two_full_replicas_send_back_and_forth_is_refused_though_a_third_has_room():
    replicas = make_replicas(1, 1, 9)
    for index in range(2):
        assert replicas[2].offer(0.0, SimRequest(50 + index, 0.0, 10, 100)) == "taken"
    assert in_front(replicas)(4) == ["r0", "r1", "", ""]


def test_a_prompt_whose_body_fits_no_buffer_is_refused_where_it_arrives():
    send = in_front(make_replicas(1, 9))
    assert send(2) == ["r0", "r1"]
    assert send(1, prompt_tokens=RETRYABLE_BODY_BYTES // 4 + 1, first=9) == [""]
    assert send(1, prompt_tokens=RETRYABLE_BODY_BYTES // 4, first=10) == ["r1"]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_tokens_inside_are_bounded_as_in_the_service(scale: float):
    # Four times what the KV cache holds, 100,000; an answer counts as its limit, 100.
    (replica,) = make_replicas(None)
    replica.take(0.0, Directive(epoch=2, mode=DirectiveMode.FP16, lease_s=2.0, reason="test", admission_scale=scale))
    assert in_front([replica])(100, prompt_tokens=9_900).count("r0") == 40 * scale
