"""Directives reach the scheduler while a step runs. The engine core's own code, without an engine behind it.

Run: ``pytest -q tests/plugin/test_directive_intake.py``
"""

import queue

import pytest
import vllm_parts  # vLLM, imported with its warnings kept quiet
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState

from nestedfp.vllm_plugin.directives import directive_intake

assert vllm_parts.MODEL

CLIENT = 0
DIRECTIVE = {"mode": "fp8", "epoch": 7}


def utility(method, *args):
    return EngineCoreRequestType.UTILITY, (CLIENT, 1, method, args)


class Core(EngineCoreProc):
    """A core whose main thread is inside a step: nobody takes anything from its queue."""

    def __init__(self, asked_workers=True):
        self.input_queue, self.output_queue = queue.Queue(), queue.Queue()
        self.shutdown_state = EngineShutdownState.RUNNING
        self.nestedfp_asked_workers = asked_workers
        self.taken = []

    def nestedfp_set_directive(self, directive):
        if directive["mode"] not in ("fp16", "fp8"):
            raise ValueError(f"unknown mode {directive['mode']}")
        self.taken.append(directive)
        return {"mode": directive["mode"], "epoch": directive["epoch"]}

    def nestedfp_stats(self):
        raise AssertionError("answered between two steps only")


@pytest.fixture
def received(monkeypatch):
    """Runs the thread that reads the sockets on some messages, and returns the core."""
    messages = []

    def read_sockets(self):
        for message in messages:
            self.input_queue.put_nowait(message)

    monkeypatch.setattr(EngineCoreProc, "process_input_sockets", read_sockets)
    directive_intake.install()
    directive_intake.install()

    def run(core, *sent):
        messages[:] = sent
        core.process_input_sockets()
        return core

    return run


def test_a_directive_is_in_force_and_acknowledged_while_a_step_runs(received):
    core = received(Core(), utility("nestedfp_set_directive", DIRECTIVE))
    assert core.taken == [DIRECTIVE]
    assert core.input_queue.empty()
    client, outputs = core.output_queue.get_nowait()
    assert client == CLIENT
    assert outputs.utility_output.result.result == DIRECTIVE
    assert core.output_queue.empty(), "answered once"


def test_everything_else_waits_for_the_end_of_the_step_in_its_order(received):
    others = [
        utility("nestedfp_stats"),
        (EngineCoreRequestType.ADD, ("a request", 0)),
        (EngineCoreRequestType.ABORT, ["a request"]),
    ]
    core = received(Core(), others[0], utility("nestedfp_set_directive", DIRECTIVE), *others[1:])
    assert [core.input_queue.get_nowait() for _ in others] == others
    assert core.taken == [DIRECTIVE]


def test_the_first_directive_waits_for_the_thread_that_may_ask_the_workers(received):
    first = utility("nestedfp_set_directive", DIRECTIVE)
    core = received(Core(asked_workers=False), first)
    assert core.input_queue.get_nowait() == first
    assert core.taken == []


def test_a_directive_that_is_refused_says_why_and_changes_nothing(received):
    core = received(Core(), utility("nestedfp_set_directive", {"mode": "fp4", "epoch": 8}))
    _, outputs = core.output_queue.get_nowait()
    assert "unknown mode fp4" in outputs.utility_output.failure_message
    assert core.taken == []
