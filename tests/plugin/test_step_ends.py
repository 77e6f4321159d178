"""What a rank tells of the time between the ends of its steps; the GPU's events stand aside here for ones that count.

Run: ``pytest -q tests/plugin/test_step_ends.py``
"""

import time

import pytest
import torch
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm_parts import ModelRunnerOutput

from nestedfp.vllm_plugin import drafts
from nestedfp.vllm_plugin.ranks.timing.step_ends import SINCE_LAST_S, StepEnds


class Stream:
    """A stream whose time the test moves."""

    def __init__(self):
        self.now_ms = 0.0
        self.waited_for = []

    def event(self):
        return Event(self)


class Event:
    def __init__(self, stream):
        self.stream, self.at_ms = stream, None

    def record(self):
        self.at_ms = self.stream.now_ms

    def synchronize(self):
        self.stream.waited_for.append(self.at_ms)

    def elapsed_time(self, end):
        assert end.at_ms in self.stream.waited_for, "its time is not known before it has happened"
        return end.at_ms - self.at_ms


class OnItsWay(AsyncModelRunnerOutput):
    def __init__(self, output):
        self.output = output

    def get_output(self):
        return self.output


def output():
    return ModelRunnerOutput(["a"], {"a": 0}, [[7]])


def test_every_output_tells_how_long_after_the_step_before_it_ended():
    stream = Stream()
    ends = StepEnds(stream.event)
    first = ends.after(OnItsWay(output()))
    stream.now_ms += 20.0
    second = ends.after(OnItsWay(output()))
    stream.now_ms += 9.0
    third = ends.after(OnItsWay(output()))
    assert stream.waited_for == [], "nobody waits before somebody wants the tokens"
    told = [each.get_output() for each in (first, second, third)]
    assert [each.sampled_token_ids for each in told] == [[[7]]] * 3
    assert [getattr(each, SINCE_LAST_S) for each in told] == [None, pytest.approx(0.020), pytest.approx(0.009)]


def test_a_step_ends_before_its_drafts():
    class Runner:
        class speculator:
            @staticmethod
            def propose(ms):
                stream.now_ms += ms
                return "drafts"

    stream = Stream()
    ends, runner = StepEnds(stream.event), Runner()
    drafts.precede(runner, ends.mark_before_drafts)
    told = []
    for step_ms, drafts_ms in ((20.0, 5.0), (9.0, 5.0), (9.0, 4.0)):
        stream.now_ms += step_ms
        assert runner.speculator.propose(drafts_ms) == "drafts"
        told.append(ends.after(OnItsWay(output())))
    found = [getattr(each.get_output(), SINCE_LAST_S) for each in told]
    assert found == [None, pytest.approx(0.014), pytest.approx(0.014)], "a step, and the drafts of the one before"
    assert stream.waited_for == [20.0, 34.0, 48.0]


def test_an_output_that_is_there_and_none_stay_as_they_are_and_nobody_waits():
    stream = Stream()
    ends = StepEnds(stream.event)
    there = output()
    assert ends.after(None) is None
    assert ends.after(there) is there
    assert not hasattr(there, SINCE_LAST_S)
    assert stream.waited_for == []


@pytest.mark.gpu
def test_a_gpu_tells_how_long_its_work_took_though_nobody_looked():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    work = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    ends = StepEnds()

    def launch(products):
        for _ in range(products):
            work @ work
        return ends.after(OnItsWay(output()))

    launch(5).get_output()
    few, many = launch(20), launch(200)
    time.sleep(0.2)  # the host looks long after both have ended
    few_s, many_s = (getattr(each.get_output(), SINCE_LAST_S) for each in (few, many))
    assert 5 < many_s / few_s < 20
    assert many_s < 0.2
