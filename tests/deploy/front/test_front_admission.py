"""Who is let in, who is refused, and who is sent to another replica: by room, priority, deadline and pin."""

import hashlib
import json
import time

import pytest
from front_calls import GOOD, Client, Peers, SamplingParams, ask, error_of, failing, front, output, quota
from hand_clock import HandClock
from vllm.exceptions import VLLMValidationError

from deploy.access.admission import Admission, Asked
from deploy.access.keys import Keys
from deploy.access.peers import RETRYABLE_BODY_BYTES, Elsewhere
from deploy.front.context import CONTEXT, PathMeter
from deploy.front.generate import Queueing
from deploy.front.handover import EngineClientProxy
from deploy.front.routes import text
from deploy.front.streams import Frame
from deploy.haproxy.haproxy_config import ATTEMPT_HEADER, ELSEWHERE_STATUS


def full():
    admission = Admission(2, 8)
    admission.enter(Asked(prompts=2))
    return admission


@pytest.mark.parametrize("peers", [False, True])
def test_a_full_replica_sends_a_request_on_where_there_is_somebody_else(peers):
    app = front(failing(AssertionError("was let in")), Peers(peers), full())
    answer = ask(app, headers={ATTEMPT_HEADER: "a"})
    assert answer[0] == (ELSEWHERE_STATUS if peers else 429)
    assert "computes 2 sequences and takes 2" in error_of(answer)
    assert "retry-after" in answer[1]
    assert ask(app, headers={ATTEMPT_HEADER: "a"})[0] == 429


@pytest.mark.parametrize(("replicas", "took_it", "load"), [(1, 0, 12), (3, 0, 12), (3, 2, 4), (3, 1, 8), (10, 2, 9)])
def test_a_request_counts_once_towards_the_load_however_many_replicas_refuse_it(replicas, took_it, load):
    """Of replicas that are asked in turn, the last ``took_it`` would take it; of ten, eight are asked."""
    doors = [full() for _ in range(min(replicas, 8) - took_it)]
    apps = [front(failing(AssertionError("was let in")), Peers(replicas - 1), door) for door in doors]
    for number in range(12):
        headers = {ATTEMPT_HEADER: f"a{number}"}
        answers = [ask(app, headers=headers)[0] for app in apps]
        assert answers == [ELSEWHERE_STATUS if replicas > 1 else 429] * len(apps)
        if replicas > 1 and not took_it:
            assert ask(apps[0], headers=headers)[0] == 429, "it has come back, refused by all"
    assert sum(door._turned_away for door in doors) == pytest.approx(load)
    assert sum(door.refused for door in doors) == pytest.approx(
        sum(door._turned_away for door in doors), abs=len(doors)
    )


def test_what_goes_wrong_right_after_a_request_was_let_in_frees_its_place(monkeypatch):
    admission, meter = Admission(8, 8, tokens=1000), PathMeter()
    entered = []

    def breaks(route, request):
        entered.append(admission.inside)
        raise RuntimeError("a field that nobody thought of")

    monkeypatch.setattr(text.Route, "is_plain", breaks)
    with pytest.raises(RuntimeError, match="nobody thought of"):
        ask(front(admission=admission, meter=meter), body={**GOOD, "prompt": ["a", "b"], "n": 3})
    assert entered == [6], "the sequences that the engine would compute"
    assert (admission.inside, admission.tokens_inside, meter.stats(0.0).in_path) == (0, 0, 0)


def tokenized(prompt_tokens=50, most=16, beams=False):
    """A ``do`` that calls the engine as vLLM's serving objects do, with so long a prompt; for beams without a priority."""
    calls = []

    class Answering(Client):
        async def generate(self, prompt, params, request_id, **options):
            calls.append(options)
            yield output("a", "length")

    async def do(request):
        options = {} if beams else {"priority": request.priority}
        params = SamplingParams(max_tokens=most)
        stream = EngineClientProxy(Answering()).generate(
            {"prompt_token_ids": [7] * prompt_tokens}, params, "r", **options
        )
        async for _ in stream:
            raise VLLMValidationError("got in")

    return do, calls


def test_a_prompt_that_is_longer_than_it_looked_is_refused_before_the_engine_hears_of_it():
    admission = Admission(None, 8, tokens=100)
    admission.enter(Asked(output_tokens=50))
    do, calls = tokenized(prompt_tokens=40)
    answer = ask(front(do, admission=admission))
    assert answer[0] == 429
    assert "tokens, this one 40 more, and it takes 100" in error_of(answer)
    assert (calls, admission.tokens_inside) == ([], 50)
    assert ask(front(tokenized(prompt_tokens=30)[0], admission=admission))[0] == 400, "got in"
    answer = ask(front(tokenized(40)[0], Peers(), admission), headers={ATTEMPT_HEADER: "a"})
    assert answer[0] == ELSEWHERE_STATUS


@pytest.mark.parametrize(("by_priority", "beams", "wanted"), [(True, False, 5), (True, True, 5), (False, False, 0)])
def test_the_engine_hears_of_priorities_only_where_it_goes_by_them(by_priority, beams, wanted):
    do, calls = tokenized(beams=beams)
    ask(front(do, queueing=Queueing(by_priority=by_priority)), body={**GOOD, "priority": 5})
    assert calls == [{"priority": wanted}]


def test_a_lower_class_is_refused_where_another_gets_in():
    admission = Admission(4, 8)
    admission.enter(Asked(prompts=2))
    app = front(tokenized()[0], admission=admission)
    assert ask(app, body={**GOOD, "priority": 1})[0] == 429
    assert ask(app, headers={"x-vllm-priority": "1"})[0] == 429
    assert ask(app)[0] == 400, "got in"
    admission.enter(Asked(prompts=2))
    assert ask(app)[0] == 429
    assert ask(app, body={**GOOD, "vllm_xargs": {"precision": "fp16"}})[0] == 400, "pinned requests are high"


def test_a_key_says_the_class_of_its_requests_and_none_gets_a_better_one(tmp_path):
    secrets = {"usual": {}, "night": {"priority": "batch"}}
    entries = [{"name": n, "sha256": hashlib.sha256(n.encode()).hexdigest(), **more} for n, more in secrets.items()]
    (tmp_path / "keys.yaml").write_text(json.dumps({"keys": entries}))
    admission = Admission(4, 8)
    admission.enter(Asked(prompts=2))
    app = front(tokenized()[0], admission=admission, keys=Keys(tmp_path / "keys.yaml"))
    statuses = {name: ask(app, headers={"authorization": f"Bearer {name}"})[0] for name in secrets}
    assert statuses == {"usual": 400, "night": 429}
    answer = ask(app, headers={"authorization": "Bearer usual"}, body={**GOOD, "priority": -1})
    assert (answer[0], "of the class high" in error_of(answer)) == (403, True)


def queued():
    """A replica whose engine takes ten seconds before it begins another request."""
    clock = HandClock()
    admission = Admission(None, 1, clock=clock)
    places = [admission.enter() for _ in range(10)]
    for _ in range(20):
        clock.now_s += 1.0
        places.pop().leave(completion_tokens=1)
        places.append(admission.enter())
    return admission


def test_a_request_that_cannot_be_begun_in_time_is_refused_at_once_and_not_held_against_the_service():
    meter = PathMeter()
    app = front(failing(AssertionError("was let in")), admission=queued(), meter=meter)
    answer = ask(app, headers={"x-nestedfp-queue-deadline-s": "2"})
    assert answer[0] == 503
    assert "in about 9.7 s, its queue deadline ends in 2.0 s" in error_of(answer)
    assert answer[1]["retry-after"] == "9", "after that 0.8 * 2 s would do"
    text = str(list(meter.requests.collect()))
    assert "'outcome': 'refused'}, value=1.0" in text
    assert "'outcome': 'failed'}, value=1.0" not in text
    app = front(failing(AssertionError("was let in")), Peers(), queued())
    headers = {"x-nestedfp-queue-deadline-s": "2", ATTEMPT_HEADER: "a"}
    assert [ask(app, headers=headers)[0] for _ in range(2)] == [ELSEWHERE_STATUS, 503]


def test_the_configured_deadline_holds_for_those_that_say_nothing_and_a_request_may_wait_longer():
    app = front(failing(VLLMValidationError("got in")), admission=queued(), queueing=Queueing(deadline_s=2.0))
    assert ask(app)[0] == 503
    assert ask(app, headers={"x-nestedfp-queue-deadline-s": "60"})[0] == 400, "got in"
    assert ask(front(failing(VLLMValidationError("got in")), admission=queued()))[0] == 400, "no deadline"


@pytest.mark.parametrize("plain", [True, False])
def test_a_request_whose_deadline_is_up_in_front_of_the_engine_gets_503_and_uses_no_quota(plain, tmp_path):
    keys, used = quota(tmp_path)
    admission, clock = Admission(None, 8), HandClock(time.monotonic())

    async def do(request):
        clock.now_s += 3.0  # that the tokenizer took
        stream = EngineClientProxy(Client()).generate({"prompt_token_ids": [7] * 50}, SamplingParams(), "r")
        if plain:
            (call,) = CONTEXT.get().calls
            call.frame = Frame.make("id", 1, "m", chat=False, include_usage=False)
            return call
        async for _ in stream:
            raise AssertionError("an output was passed on")

    queueing = Queueing(deadline_s=2.0)
    app = front(do, admission=admission, meter=PathMeter(clock), keys=keys, queueing=queueing)
    answer = ask(app, body={**GOOD, "stream": plain}, headers={"authorization": "Bearer secret"})
    assert answer[0] == 503
    assert "could not be given to the engine before its queue deadline" in error_of(answer)
    assert int(answer[1]["retry-after"]) > 0
    assert (admission.inside, used()) == (0, 0)
    assert admission.refusals["late", "normal"] == 1


def test_who_was_sent_on_is_remembered_and_the_memory_is_bounded():
    elsewhere = Elsewhere(capacity=3)

    def go(name, size=10):
        return elsewhere.may_go({ATTEMPT_HEADER.encode(): name}, size)

    assert [go(b"a"), go(b"a"), go(b"b"), go(b"c"), go(b"d")] == [True, False, True, True, True]
    assert go(b"a") is True, "forgotten"
    assert go(b"d") is False
    assert elsewhere.may_go({}, 10) is False, "no HAProxy in front"
    assert go(b"e", RETRYABLE_BODY_BYTES + 1) is False, "HAProxy no longer has the body"
    assert isinstance(elsewhere._seen.popitem()[0], bytes)
