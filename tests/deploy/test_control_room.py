"""The control room without a service: its timelines, what has come since, who may open it, and what holds a browser to it."""

import asyncio
import base64
import hashlib
import json
import re
import warnings

import pytest
from fastapi import HTTPException
from hand_clock import HandClock

from deploy.control_room import page
from deploy.control_room.feed import Feed, StatusHistory
from deploy.haproxy import launcher
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
    assert (sample["span_s"], sample["arrivals_per_s"], sample["waiting"], sample["running"]) == (1.0, 2.0, 2, 4)
    assert (sample["tokens_fp16"], sample["tokens_fp8"], sample["slo_evaluated"], sample["within_slo"]) == (
        50,
        30,
        4,
        3,
    )
    assert (sample["answers_exact"], sample["answers_fast"], sample["answers_mixed"]) == (2, 0, 1)
    assert (sample["ttft_p90_ms"], sample["tpot_p90_ms"]) == (50.0, None)
    assert [(each["waiting"], each["ttft_p90_ms"]) for each in line.since(0.0)] == [(5, 80.0), (2, 50.0)]


def test_an_engine_that_starts_anew_and_a_replica_that_joins_count_from_there():
    line = StatusHistory(10)
    line.add(1.0, {"replicas": [replica(tokens_fp16=1000)]})
    assert line.add(2.0, {"replicas": [replica(tokens_fp16=5), replica("r2", tokens_fp16=700)]})["tokens_fp16"] == 0
    assert line.add(3.0, {"replicas": [replica(tokens_fp16=9), replica("r2", tokens_fp16=701)]})["tokens_fp16"] == 5


def test_after_a_gap_nothing_is_counted_that_nobody_watched():
    line = StatusHistory(10)
    line.add(1.0, {"replicas": [replica()]})
    line.gap()
    sample = line.add(60.0, {"replicas": [replica(tokens_fp16=9000)]})
    assert (sample["span_s"], sample["tokens_fp16"]) == (None, 0)


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


def following(scenario):
    """Run a scenario with a controller, the feed that follows it, and a clock."""
    controller, clock = Controller(), HandClock(5.0)
    asyncio.run(scenario(controller, Feed(controller.ask, wall=clock), clock))


def test_a_page_gets_everything_first_and_then_what_is_new():
    async def scenario(controller, stream, clock):
        controller.decide(2)
        for clock.now_s in (5.0, 6.0):
            await stream.tick()
        whole = stream.since(0.0)
        assert [each["decision_id"] for each in whole["decisions"]] == [1, 2]
        assert (whole["status"]["mode"], whole["wall_s"], whole["error"]) == ("fp16", 6.0, None)
        assert [each["wall_s"] for each in whole["samples"]] == [5.0, 6.0]
        assert (stream.since(whole["at_s"])["samples"], stream.since(whole["at_s"])["decisions"]) == ([], [])
        controller.decide()
        clock.now_s = 7.0
        await stream.tick()
        new = stream.since(whole["at_s"])
        assert [each["decision_id"] for each in new["decisions"]] == [3]
        assert [(each["wall_s"], each["waiting"]) for each in new["samples"]] == [(7.0, 1)]

    following(scenario)


def test_a_clock_that_is_set_back_sends_nothing_twice():
    async def scenario(controller, stream, clock):
        seen_s, got = 0.0, []
        for clock.now_s in (100.0, 101.0, 40.0, 41.0, 42.0):
            await stream.tick()
            new = stream.since(seen_s)
            seen_s = new["at_s"]
            got.append(len(new["samples"]))
        assert got == [1] * 5

    following(scenario)


def test_a_silent_controller_is_said_and_one_that_starts_anew_is_followed():
    async def scenario(controller, stream, clock):
        controller.decide(3)
        await stream.tick()
        controller.silent = True
        await stream.tick()
        seen = stream.since(0.0)
        assert (seen["status"], seen["error"]) == (None, "the controller does not answer")
        controller.made.clear()
        controller.decide(3)  # as far as the one before
        controller.silent, clock.now_s = False, 9.0
        await stream.tick()
        new = stream.since(seen["at_s"])
        assert [each["decision_id"] for each in new["decisions"]] == [1, 2, 3]
        assert [each["span_s"] for each in new["samples"]] == [None]

    following(scenario)


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
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    monkeypatch.setenv(launcher.SETTINGS_ENV, "{}")

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
    """The data, or the refusal's status."""

    async def run():
        try:
            return json.loads((await control.data(0.0, authorization)).body)
        except HTTPException as refusal:
            return refusal.status_code
        finally:
            await control._feed.stop()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("authorization", "status"), [(None, 401), ("Bearer wrong", 401), ("Bearer user", 403), ("Bearer pin", 403)]
)
def test_with_keys_the_data_need_what_the_status_needs(control, authorization, status):
    assert opened(control("user", "pin", "admin"), authorization) == status


@pytest.mark.parametrize("key", [None, "admin", "the-admin-key"])
def test_a_key_that_reads_the_status_shows_the_data_and_without_keys_nobody_needs_one(control, key):
    found = opened(control(*(("user", "admin") if key else ())), key and f"Bearer {key}")
    assert found["samples"] == []


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
