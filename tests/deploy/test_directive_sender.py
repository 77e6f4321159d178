"""A directive's way past the replica's event loop: the engine core's own line, and all of it together with the real parts.

vLLM's scheduler, the controller, the agent and the line are those of the service; there is no model, and the controller is a call
away instead of a process.
"""

import asyncio
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import vllm_parts  # vLLM, imported with its warnings kept quiet
from vllm.v1.engine.core import EngineCore

from controller.config import ControllerConfig
from controller.live.actor import ControllerActor
from deploy.agent.agent import ReplicaAgent
from deploy.agent.enforcement import DirectiveLine, DirectiveRefused
from nestedfp.vllm_plugin.directives.directive_receiver import THREAD_NAME, open_line

LIMIT_S = 20.0


class Core:
    """An engine core's scheduler and utilities; nobody runs its main thread."""

    def __init__(self):
        self.engine = vllm_parts.Engine()
        self.scheduler = self.engine.scheduler
        self.nestedfp_asked_workers = True
        self.model_executor = SimpleNamespace(collective_rpc=lambda name: [None if name.endswith("costs") else 1.0])

    async def __call__(self, utility, *args):
        return getattr(EngineCore, utility)(self, *args)

    @property
    def in_force(self):
        stats = self.scheduler.nestedfp_stats()
        return stats["directive"], stats["epoch"]

    def step_mode(self):
        """The precision of a step that is scheduled now."""
        self.engine.add(vllm_parts.engine_request(f"request {time.monotonic_ns()}", 5))
        return self.engine.schedule().nestedfp_mode.value


@pytest.fixture(scope="module")
def core():
    return Core()


@pytest.fixture
def fresh(core):
    core.scheduler._in_force = (*core.scheduler._in_force[:2], 0)
    return core


@pytest.fixture
def line(fresh):
    line = asyncio.run(DirectiveLine.open(fresh))
    yield line
    line.close()


def directive(epoch, mode):
    return {"epoch": epoch, "mode": mode}


def until(condition):
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came"
        time.sleep(0.005)


def test_a_directive_is_in_force_for_the_next_step_when_the_line_has_answered(line, fresh):
    for epoch, mode in ((1, "fp8"), (2, "fp16"), (3, "fp8")):
        line.tell(directive(epoch, mode))
        assert (fresh.step_mode(), fresh.in_force) == (mode, (mode, epoch))


def test_a_directive_that_is_refused_says_why_and_the_line_goes_on(line, fresh):
    line.tell(directive(1, "fp8"))
    with pytest.raises(DirectiveRefused, match="fp4"):
        line.tell(directive(2, "fp4"))
    assert fresh.in_force == ("fp8", 1)
    line.tell(directive(3, "fp16"))
    assert fresh.in_force == ("fp16", 3)


def test_only_this_user_can_reach_the_socket(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    modes = []

    async def connects(utility, path):
        modes.append(next(tmp_path.iterdir()).stat().st_mode & 0o777)
        open_line(lambda directive: None, path)

    asyncio.run(DirectiveLine.open(connects)).close()
    assert modes == [0o700]


def test_an_engine_that_does_not_answer_in_time_is_no_answer_and_its_late_one_is_passed_over():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line = DirectiveLine(here, limit_s=0.05)
    with there:
        with pytest.raises(TimeoutError):
            line.tell(directive(1, "fp8"))
        there.recv(1 << 16)
        there.send(b'{"call": 1, "error": "of a directive that nobody waits for"}')
        there.send(b'{"call": 2}')
        line.tell(directive(2, "fp8"))
    with pytest.raises(ConnectionError):
        line.tell(directive(3, "fp8"))
    line.close()


class Service:
    """A replica on an event loop of its own thread, and its controller on another one."""

    def __init__(self, core, config):
        self.loops, self.threads = {}, []
        self.actor = self.agent = None

        async def control():
            self.actor = ControllerActor(config.model_dump(mode="json"))

        for name in ("controller", "replica"):
            loop = self.loops[name] = asyncio.new_event_loop()
            self.threads.append(threading.Thread(target=loop.run_forever, daemon=True))
            self.threads[-1].start()
        self.on("controller", control())
        self.agent = ReplicaAgent("r0", core, self.report, self.call, config)
        self.on("replica", self.agent.start())

    def on(self, loop, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loops[loop]).result(LIMIT_S)

    async def report(self, snapshot):
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self.actor.report(snapshot), self.loops["controller"])
        )

    def call(self, ack, seen):
        return asyncio.run_coroutine_threadsafe(self.actor.next_directive("r0", ack, seen), self.loops["controller"])

    def close(self):
        self.on("replica", self.agent.stop())
        self.on("controller", self.actor.close())
        for loop, thread in zip(self.loops.values(), self.threads, strict=True):
            self.on_loop_end(loop, thread)

    def on_loop_end(self, loop, thread):
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
        loop.close()


@pytest.fixture
def service(fresh, monkeypatch):
    # A thread that computes hands the interpreter on every 5 ms, and the way of an acknowledgement takes many such turns. This
    # is over well before the replica's event loop goes on.
    monkeypatch.setattr("controller.live.actor.OVERRIDE_WAIT_S", LIMIT_S / 2)
    service = Service(fresh, ControllerConfig.model_validate({"lease_s": 60.0}))
    until(lambda: "r0" in service.actor._delivery._waiting)
    yield service
    service.close()


@pytest.mark.parametrize("busy", ["waiting", "computing"])
def test_a_directive_is_acknowledged_while_the_replicas_event_loop_stands_still(service, fresh, busy):
    for mode in ("fp8", "fp16"):
        over = threading.Event()
        began = threading.Event()

        def hold(over=over, began=began):
            began.set()
            end_s = time.monotonic() + LIMIT_S
            while not over.is_set() and time.monotonic() < end_s:
                if busy == "waiting":
                    over.wait(0.3)

        service.loops["replica"].call_soon_threadsafe(hold)
        assert began.wait(LIMIT_S)
        try:
            status = service.on("controller", service.actor.set_override(mode))
            assert not over.is_set()
            (replica,) = status["replicas"]
            assert (replica["acked"], replica["epoch"]) == (True, status["epoch"])
            assert fresh.in_force == (mode, status["epoch"])
            assert fresh.step_mode() == mode
        finally:
            over.set()


def test_where_the_line_breaks_it_is_opened_anew(service, fresh, caplog):
    service.agent._enforcement._line._line.shutdown(socket.SHUT_RDWR)
    for mode in ("fp8", "fp16"):
        service.on("controller", service.actor.set_override(mode))
        until(lambda mode=mode: fresh.in_force[0] == mode)
    assert "the line for directives broke" in caplog.text


def test_a_replica_that_stops_leaves_neither_thread_nor_line(service):
    def threads():
        return {thread.name for thread in threading.enumerate()} & {THREAD_NAME, "standing call"}

    assert threads() == {THREAD_NAME, "standing call"}
    service.on("replica", service.agent.stop())
    until(lambda: not threads())
