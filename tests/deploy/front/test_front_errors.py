"""What a client hears when its request fails before the first token, or is refused by an engine that is dead, hung or late."""

import json

import pytest
from front_calls import GOOD, Client, Peers, ask, error_of, failing, front, output, stream_of
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from deploy.front.context import CONTEXT
from deploy.front.replies import OVERLOADED, Refused
from deploy.haproxy.haproxy_config import ATTEMPT_HEADER, ELSEWHERE_STATUS


def test_what_vllm_refuses_is_400_with_its_sentence():
    answer = ask(front(failing(VLLMValidationError("too long", parameter="prompt", value=3))))
    assert answer[0] == 400
    assert "too long" in error_of(answer)
    assert json.loads(answer[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("error", [KeyError("x"), AttributeError("None"), RecursionError(), OSError("/x")])
def test_what_fails_before_the_engine_has_the_request_is_the_requests_fault(error):
    answer = ask(front(failing(error)))
    assert answer[0] == 400
    assert "cannot be processed" in error_of(answer)
    assert b"Traceback" not in answer[2]


def test_what_vllm_wraps_before_the_engine_has_taken_the_request_is_told_by_its_cause():
    async def do(request):
        raise EngineGenerateError from VLLMValidationError("regex: escape at the end", parameter="regex", value=1)

    answer = ask(front(do))
    assert answer[0] == 400
    assert "escape at the end" in error_of(answer)


def test_what_fails_in_the_engine_is_500_without_details():
    async def do(request):
        CONTEXT.get().completion_tokens = 1
        raise EngineGenerateError from RuntimeError("in /secret/place.py")

    answer = ask(front(do))
    assert answer[0] == 500
    assert error_of(answer) == "the engine failed on this request"


@pytest.mark.parametrize("peers", [False, True])
def test_an_engine_that_died_before_it_had_the_request_sends_it_on(peers):
    app = front(failing(EngineDeadError()), Peers(peers))
    headers = {ATTEMPT_HEADER: "a"}
    answer = ask(app, headers=headers)
    assert answer[0] == ELSEWHERE_STATUS, "whatever the controller counts: it does not count this one any more"
    assert "retry-after" in answer[1]
    assert ask(app, headers=headers)[0] == 503, "at second sight there is nobody else"


def test_an_engine_that_died_of_a_request_does_not_send_it_to_the_next_one():
    async def do(request):
        CONTEXT.get().submitted()
        raise EngineDeadError

    answer = ask(front(do, Peers()), headers={ATTEMPT_HEADER: "a"})
    assert answer[0] == 503
    assert "this request was in it" in error_of(answer)
    assert "retry-after" in answer[1]


def test_a_replica_whose_engine_is_dead_does_not_even_try():
    client = Client()
    client.errored = True
    app = front(failing(AssertionError("was tried")), Peers(), client=client)
    assert ask(app, headers={ATTEMPT_HEADER: "a"})[0] == ELSEWHERE_STATUS
    assert ask(app)[0] == 503, "without HAProxy in front nobody would try again"


def test_a_replica_whose_engine_hangs_takes_nothing_and_says_why():
    app = front(
        failing(AssertionError("was tried")), Peers(False, fault="its engine has not answered for 9 s: it hangs")
    )
    assert ask(app, headers={ATTEMPT_HEADER: "a"})[0] == ELSEWHERE_STATUS
    answer = ask(app, headers={ATTEMPT_HEADER: "a"})
    assert answer[0] == 503
    assert "its engine has not answered for 9 s" in error_of(answer)
    assert "retry-after" in answer[1]


@pytest.mark.parametrize(("peers", "first"), [(True, ELSEWHERE_STATUS), (False, 200)])
def test_while_an_engine_is_late_requests_go_to_a_replica_beside_it_and_come_back_if_there_is_none(peers, first):
    app = front(stream_of(output("a", "length")), Peers(peers, late=True))
    asked = [ask(app, body={**GOOD, "stream": True}, headers={ATTEMPT_HEADER: "a"})[0] for _ in range(2)]
    assert asked == [first, 200]


def test_what_vllm_stumbles_over_in_the_parts_of_a_dead_engine_is_no_fault_of_the_request():
    client = Client()

    async def do(request):
        client.errored = True  # while the request was on its way
        raise EngineGenerateError from OSError("not a socket")

    answer = ask(front(do, client=client), headers={ATTEMPT_HEADER: "a"})
    assert answer[0] == ELSEWHERE_STATUS


@pytest.mark.parametrize(
    ("status", "cause", "outcome"),
    [
        *((400, None, "invalid"), (404, None, "invalid"), (500, None, "failed")),
        *((401, None, "denied"), (403, None, "denied"), (429, None, "refused")),
        *((429, OVERLOADED, "refused"), (503, OVERLOADED, "refused"), (503, None, "failed")),
        *((ELSEWHERE_STATUS, OVERLOADED, "elsewhere"), (ELSEWHERE_STATUS, None, "elsewhere")),
    ],
)
def test_a_refusal_says_as_what_its_request_counts(status, cause, outcome):
    assert Refused(status, "no", cause).outcome == outcome
