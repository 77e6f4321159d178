"""The thread in which a replica waits for directives, against a controller in memory."""

import logging
import queue
import threading
import time
from concurrent.futures import Future

import pytest
from live_service import wait_until

from deploy.agent.standing_call import StandingCall


class Controller:
    """Keeps the calls that wait, for the test to answer."""

    def __init__(self):
        self.calls = queue.Queue()
        self.gone = False
        self.at_calls = []  # what happens in the thread at each of the next calls, before it waits for the answer

    def __call__(self, ack, seen):
        if self.gone:
            raise ValueError("no actor of that name")
        if self.at_calls:
            self.at_calls.pop(0)()
        answer = Future()
        self.calls.put((ack, seen, answer))
        return answer

    def next(self):
        return self.calls.get(timeout=20)


def told(token, epoch):
    return {"token": token, "directive": {"epoch": epoch}}


@pytest.fixture
def controller():
    return Controller()


@pytest.fixture
def taken():
    return []


@pytest.fixture
def call(controller, taken, monkeypatch):
    monkeypatch.setattr("deploy.agent.standing_call.PAUSE_S", 0.01)

    def take(directive):
        taken.append(directive["epoch"])
        if directive["epoch"] < 0:
            raise RuntimeError("the engine refused a directive")
        return {"acknowledges": directive["epoch"]}

    call = StandingCall(controller, take, late_after_s=60.0)
    call.start()
    yield call
    call.stop()


def test_an_acknowledgement_goes_with_the_next_call_and_only_with_that(call, controller, taken):
    ack, seen, answer = controller.next()
    assert (ack, seen) == (None, None)
    answer.set_result(told("a", 1))
    ack, seen, answer = controller.next()
    assert (ack, seen, taken) == ({"acknowledges": 1}, "a", [1])
    answer.set_result(None)  # nothing for some seconds
    ack, seen, answer = controller.next()
    assert (ack, seen) == (None, "a")


def test_a_directive_that_the_engine_refuses_is_not_acknowledged_and_the_next_one_is_taken(call, controller, taken):
    controller.next()[2].set_result(told("a", -1))
    ack, seen, answer = controller.next()
    assert (ack, seen) == (None, "a")
    answer.set_result(told("b", 2))
    assert controller.next()[0] == {"acknowledges": 2}
    assert taken == [-1, 2]


def test_a_controller_that_goes_is_said_once_and_the_next_one_is_called(call, controller, caplog):
    with caplog.at_level(logging.INFO):
        waiting = controller.next()[2]
        controller.gone = True
        waiting.set_exception(ConnectionError("the actor died"))
        deadline_s = time.monotonic() + 20
        while "the controller does not answer the standing call" not in caplog.text:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        time.sleep(0.1)  # some more attempts
        controller.gone = False
        controller.next()[2].set_result(told("b", 3))
        assert controller.next()[0] == {"acknowledges": 3}
    assert caplog.text.count("the controller does not answer the standing call") == 1
    assert caplog.text.count("directives come by standing calls again") == 1


def test_a_controller_that_hangs_is_called_again_and_its_late_answer_is_no_answer_to_that(
    monkeypatch, call, controller, taken
):
    def waits(seconds):
        return lambda: monkeypatch.setattr(call, "_late_after_s", seconds)

    first = controller.next()[2]
    controller.at_calls = [waits(0.05), waits(60)]  # only the one is given up, however long this thread stands still
    first.set_result(None)
    late = controller.next()[2]
    newer = controller.next()[2]
    late.set_result(told("old", 1))
    newer.set_result(told("new", 2))
    assert wait_until(lambda: taken, 20, 0.01)
    assert taken[-1] == 2
    assert 1 not in taken


def test_it_stops_while_it_waits_and_leaves_no_thread(call, controller):
    controller.next()
    began_s = time.monotonic()
    call.stop()
    assert time.monotonic() - began_s < 2
    assert "standing call" not in {thread.name for thread in threading.enumerate()}
