"""What a fault is said to have cost, from timelines written by hand."""

import pytest

from chaos.fault_cost import Injection, outcome, recovered_after_s, result
from chaos.watch import ProcessLook, StatusLook
from loadtest.sender.plan import CUT, TOO_LONG, WRONG_LENGTH
from loadtest.sender.sse import UNFINISHED
from workload.records import RequestRecord

TOKENS = 8
BROKEN, NO_SERVER = "reset", "none"
BOTH, ONE = frozenset({"a", "b"}), frozenset({"a"})


def record(start_s=0.0, end_s=1.0, error=None, status=200):
    times = {"intended_s": start_s, "sent_s": start_s, "latency_ms": (end_s - start_s) * 1e3}
    tokens = {"prompt_tokens": 16, "max_tokens": TOKENS, "output_tokens": TOKENS}
    return RequestRecord(policy="plain", index=0, error=error, status=status, **times, **tokens)


def statuses(*ready, code=200, every_s=1.0):
    """One look a second, from second 0 on."""
    return [StatusLook(at * every_s, code, each) for at, each in enumerate(ready)]


def processes(*engines, kind="engine"):
    """One look each half second after the full second."""
    return [ProcessLook(at + 0.5, {kind: frozenset(pids)}) for at, pids in enumerate(engines)]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (record(), "ok"),
        (record(error=f"{WRONG_LENGTH}: 8 asked for, got 7"), "lost"),
        (record(error=UNFINISHED), "lost"),
        (record(error=f"{TOO_LONG} 120 s"), "hung"),
        (record(error=CUT), "hung"),
        (record(error="ConnectionResetError: the connection ended before the answer did"), "failed"),
        (record(error="ConnectionRefusedError: [Errno 111]", status=None), "failed"),
        (record(error="error in the stream: gone"), "failed"),
        (record(error="HTTP 503: none", status=503), "failed"),
        (record(error="HTTP 400: wrong", status=400), "failed"),
        (record(error="HTTP 429: full", status=429), "refused"),
    ],
)
def test_each_end_of_a_request_counts_as_one_thing(made, expected):
    assert outcome(made) == expected


def test_recovery_is_when_the_status_is_sound_for_good():
    seen = statuses(BOTH, ONE, BOTH, ONE, BOTH, BOTH)
    assert recovered_after_s(0.5, 2, seen, processes({1}), []) == 3.5
    assert recovered_after_s(0.5, 2, seen[:4], processes({1}), []) is None
    assert recovered_after_s(3.5, 2, seen, processes({1}), []) == 0.0


def test_it_has_not_recovered_while_a_process_is_missing_or_requests_that_begin_fail():
    seen = statuses(*[BOTH] * 6)
    assert recovered_after_s(0.5, 2, seen, processes({1}, set(), {2}), []) == 1.5
    late = [record(3.2, 3.3, NO_SERVER, None)]
    assert recovered_after_s(0.5, 2, seen, processes({1}), late) == 3.5
    earlier = [record(0.2, 5.0, BROKEN)]  # in flight at the fault: its end says nothing of new requests
    assert recovered_after_s(0.5, 2, seen, processes({1}), earlier) == 0.0


def test_a_fault_is_summed_up():
    requests = [
        record(0.0, 0.9),  # over by then
        record(0.8, 2.0, BROKEN),
        record(0.9, 3.0),
        record(1.5, 1.6, NO_SERVER, None),
        record(1.6, 1.7, "HTTP 429: full", 429),
        record(2.0, 30.0, f"{TOO_LONG} 120 s"),
        record(2.1, 2.9, UNFINISHED),
    ]
    injection = Injection(1.0, 1.0)
    seen = statuses(BOTH, BOTH, ONE, BOTH)
    found = result("engine killed", injection, 2, requests, seen, processes({1, 2}, {2}, {2, 3}))
    assert found.recover_s == 2.0
    assert (found.in_flight, found.failed, found.hung, found.lost) == (2, 2, 1, 1)
    assert found.notes == "7 requests; 1 x reset, 1 x none; 1 begun after the fault; 1 refused with 429"
