"""The access log: one line for each request that has left, whatever a client chose to call it, and no waiting for a disk."""

import json
import threading

import pytest

from deploy.access.access_log import LONGEST_VALUE, AccessLog, line_of, open_log
from deploy.front.context import PathMeter
from deploy.metrics.request_metrics import RequestOutcome
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision

ACCESS = {"time": 1_700_000_000.25, "id": "r-1", "model": "m", "outcome": "ok", "precision": None, "ttft_ms": 12.3}


@pytest.fixture
def lines():
    return []


@pytest.fixture
def meter(clock, lines):
    return PathMeter(clock, lines.append)


def test_a_line_is_json_with_the_time_written_out():
    when = {"time": "2023-11-14T22:13:20.250Z"}
    assert list(json.loads(line_of(ACCESS)).items()) == list({**ACCESS, **when}.items())


@pytest.mark.parametrize("odd", ["a\nkey=root", "a\r\n", "a\u2028b\x85c\x00", 'say "x" =', "\ud800", "-", ""])
def test_what_a_client_chose_stays_one_value_of_one_line(odd):
    text = line_of(ACCESS | dict(id=odd, model=odd))
    assert len(text.splitlines()) == 1
    assert text.isascii()
    assert json.loads(text)["id"] == odd


def test_a_long_value_is_cut():
    assert len(line_of(ACCESS | dict(id="x" * 10**6, model="y" * 10**6))) < 2 * LONGEST_VALUE + 400


def test_a_stream_is_logged_once_when_it_has_left_with_its_times(meter, clock, lines):
    passage = meter.arrive(clock.now_s)
    passage.id, passage.key, passage.model, passage.asked = "r", "k", "m", AskedPrecision.FAST
    clock.now_s += 0.05
    passage.submitted()
    for _ in range(3):
        passage.writing()
        clock.now_s += 0.1
        passage.wrote(1)
    passage.counts.update(a=TokenCounts(1, 0, 0, 0, 2, 0), b=TokenCounts(0, 1, 0, 0, 0, 3))
    passage.finished()
    assert not lines
    passage.meter.left(passage)
    (access,) = lines
    assert access.pop("time") > 0
    assert access == {
        **{"id": "r", "key": "k", "model": "m", "outcome": "ok", "status": 200, "asked": "fast", "precision": "mixed"},
        **{"prompt_fp16_tokens": 1, "prompt_fp8_tokens": 1, "cached_fp16_tokens": 0, "cached_fp8_tokens": 0},
        **{"completion_fp16_tokens": 2, "completion_fp8_tokens": 3, "ttft_ms": 150.0, "total_ms": 350.0},
    }


def test_a_client_that_left_before_the_first_byte_has_no_status(meter, lines):
    passage = meter.arrive(0.0)
    passage.outcome = RequestOutcome.LEFT
    passage.meter.left(passage)
    assert (lines[0]["outcome"], lines[0]["status"], lines[0]["ttft_ms"]) == ("left", None, None)


def test_a_disk_that_hangs_delays_nobody_and_what_has_no_room_is_counted():
    free, written = threading.Event(), []

    def write(line):
        free.wait(10)
        written.append(line)

    log = AccessLog(write, waiting=5)
    for _ in range(20):
        log.add(ACCESS)  # never waits: the test would not end
    assert log.dropped >= 14
    free.set()
    log.close()
    assert len(written) == 20 - log.dropped


def test_a_line_that_cannot_be_written_does_not_end_the_log(caplog):
    written = []

    def write(line):
        if not written and "first" in line:
            raise OSError("disk full")
        written.append(line)

    log = AccessLog(write)
    log.add(ACCESS | dict(id="first"))
    log.add(ACCESS)
    log.close()
    assert written == [line_of(ACCESS)]
    assert "was not written" in caplog.text


def test_each_replica_has_a_file_of_its_own(tmp_path):
    log = open_log(tmp_path / "logs", "replica-1")
    log.add(ACCESS)
    log.close()
    (line,) = (tmp_path / "logs" / "access_replica-1.log").read_text().splitlines()
    assert json.loads(line)["id"] == "r-1"


# -- through the front ---------------------------------------------------------------------------------------------------


def test_the_front_logs_refusals_with_their_status_and_nothing_of_key_or_prompt(meter, lines):
    pytest.importorskip("vllm")
    from front_calls import ask, front

    body = {"model": "m\nx", "prompt": "a secret prompt"}
    headers = {"x-request-id": "r-9", "authorization": "Bearer secret-key"}

    async def refuse(request):
        raise AssertionError("never asked")

    app = front(refuse, client=type("Dead", (), {"errored": True})(), meter=meter)
    assert ask(app, body=body, headers=headers)[0] == 503
    assert ask(app, body=b"no json", headers=headers)[0] == 400
    refused, invalid = lines
    assert (refused["id"], refused["outcome"], refused["status"], refused["model"]) == ("r-9", "failed", 503, "m\nx")
    assert (invalid["outcome"], invalid["status"], invalid["model"]) == ("invalid", 400, None)
    assert not [access for access in lines if "secret" in line_of(access)]


def test_an_answer_that_fails_inside_its_stream_says_so(meter, clock, lines):
    passage = meter.arrive(clock.now_s)
    passage.writing()
    passage.wrote(1)
    passage.outcome = RequestOutcome.FAILED
    passage.meter.left(passage)
    assert (lines[0]["outcome"], lines[0]["status"]) == ("failed", 200)
