"""Open-loop dispatch against a stand-in service. Run: python -m pytest tests/loadtest/test_dispatch.py

The stand-in and the sender are processes of their own; nothing of gevent enters this one. Time limits are generous: the
machine may be busy.
"""

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from loadtest_builders import fake_service

from loadtest import REPO_ROOT
from loadtest.errors import InputError, LoadtestError, ServiceError
from loadtest.report.run_summary import cached_prompt_share
from loadtest.runner import planned
from loadtest.sender.dispatch import run_plan
from loadtest.sender.plan import Event, SendPlan
from loadtest.sender.prompts import completion_body
from loadtest.sender.sse import lines_of, parse_stream
from loadtest.service.admin import ServiceClient
from loadtest.service.process import started_service
from loadtest.service.target import addresses, target_url
from workload.records import RequestRecord
from workload.traces import Arrival

pytestmark = pytest.mark.slow

STEP_MS = 40.0


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[str]:
    """One request at a time, 40 ms a token in either precision."""
    options = ("--max-running", "1", "--step-ms-fp16", str(STEP_MS), "--step-ms-fp8", str(STEP_MS))
    with fake_service(tmp_path_factory.mktemp("service"), *options) as (url, *_):
        yield url


def make_plan(url: str, tmp_path: Path, at_s: list[float], tokens: int = 5, **overrides: object) -> SendPlan:
    fields = {
        "kind": "open",
        "policy": "fp16",
        "run": 0,
        "url": url,
        "model": "fake-model",
        "requests": [{"at_s": t, "prompt_tokens": 8, "output_tokens": tokens} for t in at_s],
        "duration_s": max(at_s) + 0.1,
        "drain_s": 10.0,
        "request_timeout_s": 10.0,
        "seed": 0,
        "records_path": tmp_path / "requests.jsonl",
    }
    return SendPlan.model_validate(fields | overrides)


def send(plan: SendPlan) -> tuple[tuple[RequestRecord, ...], list[Event]]:
    events: list[Event] = []
    records = run_plan(plan, lambda _, event: events.append(event))
    return records, events


def test_requests_leave_on_time_although_earlier_ones_still_wait(service, tmp_path):
    at_s = [0.1 * i for i in range(10)]
    records, events = send(make_plan(service, tmp_path, at_s))
    assert [record.error for record in records] == [None] * 10
    assert [record.intended_s for record in records] == at_s
    # An answer takes 5 x 40 ms, and they queue: a sender that waited for them would be half a second late at the middle one. One
    # that stands still for a moment is late with the few that were due then.
    assert statistics.median(record.dispatch_lag_ms for record in records) < 150
    # The queue is in the TTFT: 9 answers of 200 ms, less the 900 ms of arrivals. Two that leave together may change places.
    assert max(record.ttft_ms for record in records) > 900
    assert max(event.in_flight for event in events) > 1
    assert (events[-1].done, events[-1].errors, events[-1].in_flight) == (10, 0, 0)


def test_every_chunk_has_its_own_time(service, tmp_path):
    # So many that one moment in which the sender stands still, and after which some come together, moves neither figure.
    tokens = 30
    (record,), _ = send(make_plan(service, tmp_path, [0.0], tokens=tokens))
    gaps_ms = [after - before for before, after in pairwise(record.chunk_ms)]
    assert len(gaps_ms) == tokens - 1
    assert 0.5 * STEP_MS < record.tpot_ms < 3 * STEP_MS
    assert (
        0.8 * STEP_MS < statistics.median(gaps_ms) < 3 * STEP_MS
    )  # merged chunks would show as gaps of nearly nothing
    assert record.output_tokens == tokens
    assert record.ttft_ms == record.chunk_ms[0] > STEP_MS
    assert record.precision_tokens.prompt.fp16 == 8
    assert record.precision_tokens.completion.fp16 == tokens


def test_the_turns_of_a_conversation_tell_its_name(service, tmp_path):
    turns = [
        {"at_s": 0.4 * turn, "prompt_tokens": 8, "output_tokens": 2, "session": session}
        for turn, session in enumerate(("conversation-1", None, "conversation-1", None))
    ]
    records, _ = send(make_plan(service, tmp_path, [0.0], requests=turns))
    assert [record.precision_tokens.prompt.cached.fp16 for record in records] == [0, 0, 8, 0]
    assert cached_prompt_share(records) == 0.25
    assert cached_prompt_share([]) is None


def test_failed_requests_are_recorded_and_not_repeated(service, tmp_path):
    before = httpx.get(f"{service}/received").json()
    requests = [{"at_s": 0.0, "prompt_tokens": tokens, "output_tokens": 5} for tokens in (101, 102, 103, 104)]
    records, events = send(make_plan(service, tmp_path, [0.0], requests=requests, request_timeout_s=3.0))
    failed, cut, short, mute = records
    assert re.match("HTTP 500: .*made to fail", failed.error)
    assert failed.status == 500
    assert re.search("HTTPParseError|ConnectionReset", cut.error)
    assert (cut.status, cut.output_tokens) == (200, 2)
    assert short.error == "expected another number of output tokens: 5 asked for, got 4"
    assert mute.error == "no complete answer within 3 s"
    assert mute.status is None
    assert events[-1].errors == 4
    assert httpx.get(f"{service}/received").json() == before + 4


def test_a_run_is_bounded_and_loses_no_request(service, tmp_path):
    plan = make_plan(service, tmp_path, [0.0, 0.1, 0.2], tokens=200, duration_s=0.3, drain_s=3.0)
    records, _ = send(plan)
    assert [record.error for record in records] == ["cut at the end of the run"] * 3
    assert records[0].output_tokens > 1  # the tokens that came before the cut count


def test_the_closed_loop_keeps_its_users_busy(service, tmp_path):
    plan = make_plan(service, tmp_path, [0.0], tokens=5, kind="closed", duration_s=4.0, users=3)
    records, events = send(plan)
    assert len(records) > 3
    assert max(event.in_flight for event in events) == 3
    assert {record.error for record in records} <= {None, "cut at the end of the run"}


def test_a_service_that_is_not_there_fails_every_request(tmp_path):
    (record,), _ = send(make_plan("http://127.0.0.1:9", tmp_path, [0.0]))
    assert "ConnectionRefused" in record.error
    assert record.ttft_ms is None


def test_a_sender_that_dies_is_reported_with_its_last_words(tmp_path):
    plan = make_plan("http://192.0.2.1:80", tmp_path, [0.0])  # refused by the sender itself, too
    with pytest.raises(LoadtestError, match=r"exit status 1.*this machine only"):
        send(plan)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:80", "http://localhost:80/", "http://[::1]:80", "http://127.8.8.8:80"]
)
def test_loopback_is_accepted(url):
    assert target_url(url) == url.rstrip("/")
    assert addresses(target_url(url))[0][1][1] == 80


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1:80", "http://example.com", "http://127.0.0.1.example.com", "http://0.0.0.0:1", "https://127.0.0.1",
     "127.0.0.1:80", "http://127.0.0.1:99999", "http://127.0.0.1@example.com", "http://127.0.0.1/x"],
)  # fmt: skip
def test_other_targets_are_refused(url):
    with pytest.raises(LoadtestError, match="expected"):
        target_url(url)


def test_a_host_that_is_named_twice_is_accepted_unless_the_internet_reaches_it():
    assert target_url("http://Serve.NestedFP.svc:8000/", "serve.nestedfp.svc") == "http://serve.nestedfp.svc:8000"
    with pytest.raises(LoadtestError, match=r"or 10\.0\.0\.1 as --allow-host says, got '10\.0\.0\.2'"):
        target_url("http://10.0.0.2", "10.0.0.1")
    for private in ("10.1.2.3", "192.168.0.1", "100.64.0.7", "[fd00::1]"):
        assert addresses(target_url(f"http://{private}:8000", private.strip("[]")))
    for public in ("8.8.8.8", "[2001:4860:4860::8888]"):
        with pytest.raises(LoadtestError, match="expected a host of a private network, got the public address"):
            addresses(target_url(f"http://{public}:8000", public.strip("[]")))
    with pytest.raises(LoadtestError, match=r"cannot find the address of 'no-such-host\.invalid'"):
        addresses("http://no-such-host.invalid:80")


def test_every_request_has_the_key_and_no_file_does(tmp_path):
    """The stand-in wants it everywhere, as a service with a file of keys does."""
    with fake_service(tmp_path, "--keyed") as (url, key, _):
        (refused,), _ = send(make_plan(url, tmp_path, [0.0]))
        assert refused.status == 401
        (record,) = run_plan(make_plan(url, tmp_path, [0.0]), lambda *_: None, key)
        assert record.error is None
        with ServiceClient(url, key) as service:
            assert service.model() == ("fake-model", 256)
            assert service.status().replicas
        with ServiceClient(url, None) as stranger, pytest.raises(ServiceError, match=r"with the role admin"):
            stranger.model()
    assert not [path for path in tmp_path.iterdir() if key in path.read_text()]


def test_gevent_stays_out_of_the_callers_process():
    code = (
        "import sys, loadtest.cli, loadtest.report.plots; sys.exit({'gevent', 'locust'} & set(sys.modules) and 1 or 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPO_ROOT, check=True, timeout=60)


def test_the_service_stops_with_the_block_and_takes_directives(tmp_path):
    with fake_service(tmp_path) as (url, key, _), ServiceClient(url, key) as service:
        assert service.model() == ("fake-model", 256)
        assert service.direct("fp8", 10.0, lambda _: None).mode == "fp8"
        service.hand_back()
        assert service.status().mode == "auto"
        with (
            ServiceClient(url, "wrong") as stranger,
            pytest.raises(ServiceError, match=r"HTTP 401: .*does not accept the key"),
        ):
            stranger.direct("fp8", 10.0, lambda _: None)
    with ServiceClient(url, key) as service, pytest.raises(ServiceError, match="is the service running"):
        service.status()


REFUSED = "print('warning: old'); print('error: a.yaml:'); print('b: unknown key'); print('c: too small'); exit(2)"


@pytest.mark.parametrize(
    ("code", "limit_s", "error", "said"),
    [
        ("print('no model'); exit(3)", 20.0, ServiceError, r"exit status 3 before it was ready.*no model"),
        ("print('Traceback'); exit(2)", 20.0, ServiceError, r"exit status 2 before it was ready.*Traceback"),
        (REFUSED, 20.0, InputError, r"^a\.yaml: b: unknown key \| c: too small; the service's output is in .*log$"),
        ("import time; time.sleep(60)", 0.5, ServiceError, r"did not print 'ready .* within 0.5 s"),
    ],
)
def test_a_service_that_ends_or_hangs_at_its_start_is_reported(code, limit_s, error, said, tmp_path):
    command = [sys.executable, "-c", code]
    with pytest.raises(error, match=said), started_service(command, tmp_path / "log", limit_s, lambda _: None):
        pass


@pytest.mark.parametrize(
    ("status", "missing"),
    [
        ({"mode": "fp16", "epoch": 2, "replicas": []}, "no replica reports"),
        ({"mode": "fp8", "epoch": 2, "replicas": [{"id": "a", "mode": "fp8", "epoch": 2}]}, "mode fp8 in force"),
        ({"mode": "fp16", "epoch": 2, "replicas": [{"id": "a", "mode": "fp8", "epoch": 1}]}, "not yet at epoch 2: a"),
        (
            {"mode": "fp16", "epoch": 2, "replicas": [{"id": "a", "mode": "fp16", "epoch": 2, "waiting": 3}]},
            "3 requests",
        ),
        ({"mode": "fp16", "epoch": 1, "replicas": [{"id": "a", "mode": "fp16", "epoch": 1}]}, "epoch 1 in force, 2"),
        ({"mode": "fp16"}, "epoch: Field required"),
    ],
)
def test_a_run_does_not_start_before_the_directive_is_in_force_and_queues_are_empty(status, missing):
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, json={"epoch": 2} if request.method == "POST" else status)
    )
    with (
        ServiceClient("http://127.0.0.1:1", "key", transport) as service,
        pytest.raises(ServiceError, match=f"not settled within 0 s: .*{missing}"),
    ):
        service.direct("fp16", 0.0, lambda _: None)


@pytest.mark.parametrize(
    ("status", "listed", "said"),
    [(200, ["a", "b"], None), (200, [], "GET /v1/models: expected"), (500, ["a"], "expected HTTP 200, got 500")],
)
def test_the_model_is_the_first_that_the_server_lists(status, listed, said):
    cards = {"data": [{"id": name, "max_model_len": 512} for name in listed]}
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=cards))
    with ServiceClient("http://127.0.0.1:1", None, transport) as service:
        if said is None:
            assert service.model() == ("a", 512)
        else:
            with pytest.raises(LoadtestError, match=re.escape(said)):
                service.model()


def test_pieces_are_cut_into_lines_with_the_time_of_the_piece_that_ends_them():
    pieces = [(1.0, b"data: a\n\nda"), (2.0, b"ta: b"), (3.0, b"\n\ndata: c\n"), (4.0, b"rest")]
    lines = [(at, line) for at, line in lines_of(pieces) if line]
    assert lines == [(1.0, b"data: a"), (3.0, b"data: b"), (3.0, b"data: c")]


DONE = b"data: [DONE]\n"
TOKEN = b'data: {"model": "m", "choices": [{"text": ""}]}\n'


@pytest.mark.parametrize(
    ("lines", "chunk_times", "output_tokens", "error"),
    [
        ([TOKEN, b"\n", TOKEN, DONE], (0.0, 2.0), 2, None),
        ([b": ping\n", TOKEN, b'data: {"choices": [], "usage": {"completion_tokens": 7}}\n', DONE], (1.0,), 7, None),
        ([TOKEN], (0.0,), 1, "ended before"),
        ([], (), 0, "ended before"),
        ([TOKEN, b"data: {oops\n"], (0.0,), 1, "expected a JSON object"),
        ([b"data: 5\n"], (), 0, "expected a JSON object"),
        ([TOKEN, b'data: {"error": {"message": "engine died"}}\n', DONE], (0.0,), 1, "engine died"),
    ],
)
def test_streams_are_parsed_also_when_they_are_damaged(lines, chunk_times, output_tokens, error):
    answer = parse_stream([(float(at), line) for at, line in enumerate(lines)])
    assert (answer.chunk_times, answer.output_tokens) == (chunk_times, output_tokens)
    assert answer.error is None if error is None else error in answer.error


def test_precision_is_read_from_the_usage_and_may_be_missing_or_strange():
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 3, "precision_tokens": %s}}\n'
    known = parse_stream(
        [(0.0, usage % b'{"prompt": {"fp16": 4, "cached": {"fp8": 2}}, "completion": {"fp8": 3}}'), (0.0, DONE)]
    )
    assert known.precision_tokens.prompt.cached.fp8 == 2
    assert known.precision_tokens.completion.fp8 == 3
    assert parse_stream([(0.0, usage % b'{"prompt": 5}'), (0.0, DONE)]).precision_tokens is None
    assert parse_stream([(0.0, TOKEN), (0.0, DONE)]).precision_tokens is None


def test_a_share_of_the_requests_asks_for_exact_answers_and_the_same_ones_in_every_run():
    arrivals = [Arrival(at_s=float(i), prompt_tokens=3, output_tokens=2) for i in range(400)]
    asked = [request.precision for request in planned(arrivals, 0.25, seed=5)]
    assert 60 < asked.count("exact") < 140
    assert asked == [request.precision for request in planned(arrivals, 0.25, seed=5)]
    assert {request.precision for request in planned(arrivals, 0.0, seed=5)} == {None}
    assert json.loads(completion_body("m", [1], 2, "exact"))["precision"] == "exact"
    assert "precision" not in json.loads(completion_body("m", [1], 2))
