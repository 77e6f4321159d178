"""The control room without a service: its timelines, its stream of events, who may open it, and what holds a browser to it."""

import asyncio
import base64
import hashlib
import json
import re
import warnings

import pytest
from fastapi import HTTPException
from hand_clock import HandClock

from deploy.control_room import feed, page
from deploy.control_room.feed import Feed
from deploy.control_room.samples import StatusHistory
from nestedfp import admin_key


def replica(name="r1", **changes):
    numbers = {"tokens_fp16": 100, "tokens_fp8": 0, "slo_evaluated": 10, "within_slo": 10, "waiting": 1, "running": 2}
    return {"id": name, "arrivals_per_s": 2.0, "ttft_p90_ms": 50.0, "tpot_p90_ms": None, **numbers, **changes}


# -- timelines -----------------------------------------------------------------------------------------------------------


def test_a_sample_adds_up_the_replicas_and_takes_the_slowest():
    line = StatusHistory(10)
    line.add(100.0, {"replicas": [replica(), replica("r2", ttft_p90_ms=80.0, waiting=4)]})
    later = [
        replica(tokens_fp16=150, tokens_fp8=30, answers_exact=2, answers_mixed=1),
        replica("r2", slo_evaluated=14, within_slo=13, arrivals_per_s=None),
    ]
    sample = line.add(101.0, {"replicas": later})
    assert (sample.span_s, sample.arrivals_per_s, sample.waiting, sample.running) == (1.0, 2.0, 2, 4)
    assert (sample.tokens_fp16, sample.tokens_fp8, sample.slo_evaluated, sample.within_slo) == (50, 30, 4, 3)
    assert (sample.answers_exact, sample.answers_fast, sample.answers_mixed) == (2, 0, 1)
    assert (sample.ttft_p90_ms, sample.tpot_p90_ms) == (50.0, None)
    assert line.columns()["waiting"] == [5, 2]
    assert line.columns()["ttft_p90_ms"] == [80.0, 50.0]


def test_an_engine_that_starts_anew_and_a_replica_that_joins_count_from_there():
    line = StatusHistory(10)
    line.add(1.0, {"replicas": [replica(tokens_fp16=1000)]})
    assert line.add(2.0, {"replicas": [replica(tokens_fp16=5), replica("r2", tokens_fp16=700)]}).tokens_fp16 == 0
    assert line.add(3.0, {"replicas": [replica(tokens_fp16=9), replica("r2", tokens_fp16=701)]}).tokens_fp16 == 5


def test_after_a_gap_nothing_is_counted_that_nobody_watched():
    line = StatusHistory(10)
    line.add(1.0, {"replicas": [replica()]})
    line.gap()
    sample = line.add(60.0, {"replicas": [replica(tokens_fp16=9000)]})
    assert (sample.span_s, sample.tokens_fp16) == (None, 0)


def test_the_timeline_forgets_the_oldest():
    line = StatusHistory(3)
    for second in range(5):
        line.add(float(second), {"replicas": []})
    assert line.columns()["wall_s"] == [2.0, 3.0, 4.0]
    assert line.columns()["arrivals_per_s"] == [None] * 3


# -- the stream ----------------------------------------------------------------------------------------------------------


class Controller:
    """Stands where the real one answers, and can fall silent, start anew and decide."""

    def __init__(self):
        self.made, self.asked, self.silent, self.wall_s = [], 0, False, 0.0

    def decide(self, count=1):
        for _ in range(count):
            self.wall_s += 1
            times = {"now_s": self.wall_s, "wall_s": self.wall_s}
            self.made.append({"decision_id": len(self.made) + 1, "reason": "because", **times})

    async def ask(self, method, *args):
        if self.silent:
            raise HTTPException(503, "the controller does not answer")
        if method == "status":
            self.asked += 1
            return {"mode": "fp16", "replicas": [replica()]}
        return [each for each in self.made if each["decision_id"] > args[0]]


def read(event):
    """(name, content) of one event, read as the page reads it."""
    found = re.fullmatch(rb"event: (\w+)\ndata: ([^\n]*)\n\n", event)
    assert found, event
    return found[1].decode(), json.loads(found[2])


def following(scenario, **options):
    """Run a scenario with a controller and the feed that follows it."""

    async def run():
        controller = Controller()
        stream = Feed(controller.ask, period_s=0.02, wall=HandClock(5.0), **options)
        try:
            async with asyncio.timeout(20):
                await scenario(controller, stream)
        finally:
            await stream.stop()

    asyncio.run(run())


async def next_of(events, name):
    while True:
        found, content = read(await anext(events))
        if found == name:
            return content


def test_a_listener_gets_everything_first_and_then_what_is_new():
    async def scenario(controller, stream):
        controller.decide(2)
        stream.start()
        while controller.asked < 3:  # the sample of the third answer may not be there yet
            await asyncio.sleep(0.01)
        events = stream.events(lambda: None)
        whole = await next_of(events, "whole")
        assert [each["decision_id"] for each in whole["decisions"]] == [1, 2]
        assert (whole["status"]["mode"], whole["wall_s"]) == ("fp16", 5.0)
        assert len(whole["columns"]["wall_s"]) >= 2
        assert whole["judged"] == {"r1": [5.0, 10, 10]}
        controller.decide()
        while not (tick := await next_of(events, "tick"))["decisions"]:
            assert tick["sample"]["waiting"] == 1
        assert [each["decision_id"] for each in tick["decisions"]] == [3]

    following(scenario)


def test_any_number_of_listeners_costs_the_controller_one_question():
    async def scenario(controller, stream):
        streams = [stream.events(lambda: None) for _ in range(feed.LISTENERS)]
        for each in streams:
            await next_of(each, "whole")
        before = controller.asked
        got = [await next_of(each, "tick") for each in streams]
        assert all(each == got[0] for each in got)
        assert controller.asked - before <= 3

    following(scenario)


def test_there_is_room_for_a_bounded_number_of_listeners():
    async def scenario(controller, stream):
        streams = [stream.events(lambda: None) for _ in range(feed.LISTENERS)]
        for each in streams:
            assert stream.may_enter
            await anext(each)
        assert not stream.may_enter
        await streams[0].aclose()
        assert stream.may_enter

    following(scenario)


def test_a_listener_that_does_not_read_is_let_go_and_the_others_stay():
    async def scenario(controller, stream):
        slow, quick = stream.events(lambda: None), stream.events(lambda: None)
        await anext(slow)
        await anext(quick)
        for _ in range(3 * feed.EVENTS_WAITING):
            await next_of(quick, "tick")
        left = [read(event)[0] async for event in slow]
        assert left[-1] == "end"
        assert len(left) <= feed.EVENTS_WAITING + 1
        await next_of(quick, "tick")

    following(scenario)


def test_a_silent_controller_is_said_and_one_that_starts_anew_is_followed():
    async def scenario(controller, stream):
        controller.decide(3)
        events = stream.events(lambda: None)
        while not (await next_of(events, "tick"))["decisions"]:
            pass
        controller.silent = True
        while (tick := await next_of(events, "tick"))["status"] is not None:
            pass
        assert (tick["sample"], tick["error"]) == (None, "the controller does not answer")
        controller.made.clear()
        controller.decide()
        controller.silent = False
        while not (tick := await next_of(events, "tick"))["decisions"]:
            pass
        assert [each["decision_id"] for each in tick["decisions"]] == [1]
        assert tick["sample"]["span_s"] is None

    following(scenario)


def test_the_decisions_of_a_controller_that_has_come_just_as_far_as_the_one_before_are_new():
    async def scenario(controller, stream):
        controller.decide(3)
        events = stream.events(lambda: None)
        while not (await next_of(events, "tick"))["decisions"]:
            pass
        controller.made.clear()
        controller.decide(3)
        while not (tick := await next_of(events, "tick"))["decisions"]:
            pass
        assert [each["decision_id"] for each in tick["decisions"]] == [1, 2, 3]

    following(scenario)


def test_a_listener_whose_key_is_withdrawn_is_let_go():
    async def scenario(controller, stream):
        refused = []

        def check():
            if refused:
                raise HTTPException(401)

        events = stream.events(check)
        await next_of(events, "tick")
        refused.append(True)
        assert [read(event)[0] async for event in events] == ["denied"]

    following(scenario)


def test_all_listeners_are_let_go_when_the_process_is_about_to_stop():
    ending = []

    async def scenario(controller, stream):
        events = stream.events(lambda: None)
        await next_of(events, "tick")
        ending.append(True)
        assert [read(event)[0] async for event in events][-1] == "end"
        assert not stream.may_enter

    following(scenario, ending=lambda: bool(ending))


# -- the routes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def control(monkeypatch, tmp_path):
    """Makes the control application's object, with a key for each of the given roles."""
    pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party imports, not ours
        from deploy.control import control_app

    (tmp_path / "admin").write_text("the-admin-key")
    monkeypatch.setenv(admin_key.KEY_FILE_ENV, str(tmp_path / "admin"))

    def make(*roles):
        answers = Controller()

        async def ask(self, method, *args):
            return await answers.ask(method, *args)

        monkeypatch.setattr(control_app.Control, "_ask", ask)
        path = None
        if roles:
            keys = [{"name": each, "role": each, "sha256": hashlib.sha256(each.encode()).hexdigest()} for each in roles]
            path = tmp_path / "keys.yaml"
            path.write_text(json.dumps({"keys": keys}))
        return control_app.Control("a", None if path is None else str(path))

    return make


def opened(control, authorization):
    """(headers, first event) of the stream, or the refusal's status."""

    async def run():
        try:
            response = await control.events(authorization)
            return response.headers, read(await anext(response.body_iterator))
        except HTTPException as refusal:
            return refusal.status_code
        finally:
            await control._feed.stop()

    return asyncio.run(run())


def test_without_keys_everybody_may_follow(control):
    headers, (name, _) = opened(control(), None)
    assert (headers["content-type"], name) == ("text/event-stream; charset=utf-8", "whole")
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("authorization", "status"), [(None, 401), ("Bearer wrong", 401), ("Bearer user", 403), ("Bearer pin", 403)]
)
def test_with_keys_the_stream_needs_what_the_status_needs(control, authorization, status):
    assert opened(control("user", "pin", "admin"), authorization) == status


@pytest.mark.parametrize("key", ["admin", "the-admin-key"])
def test_a_key_that_reads_the_status_opens_the_stream(control, key):
    assert opened(control("user", "admin"), f"Bearer {key}")[1][0] == "whole"


def test_one_listener_too_many_is_told_to_come_again(control, monkeypatch):
    monkeypatch.setattr(feed, "LISTENERS", 0)
    assert opened(control(), None) == 503


# -- the page ------------------------------------------------------------------------------------------------------------


def test_the_policy_lets_the_pages_own_script_and_style_run_and_nothing_else(control):
    answer = asyncio.run(control("admin").control_room())  # without a key: the page holds no data
    text = answer.body.decode()
    policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[rule] == f"'sha256-{digest}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"


def test_the_page_loads_nothing_from_elsewhere_and_writes_no_html():
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page.HTML))
    assert addresses == {"http://www.w3.org/2000/svg"}, "a name space, which no browser fetches"
    for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage", " style="):
        assert risky not in page.HTML
