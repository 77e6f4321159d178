"""Queue deadlines: a request that the engine has not begun in time is ended, one that has begun is finished.

The engine's scheduler and its front end are vLLM's own; what a worker would sample is given.
"""

import asyncio

import pytest
from hand_clock import HandClock
from vllm_parts import (  # first: it silences third-party warnings
    Engine,
    FrontEnd,
    ParentRequest,
    RequestStatus,
    SamplingParams,
    engine_request,
)

from deploy.front.context import PathMeter, RequestContext
from deploy.front.deadline import EngineQueue, QueueDeadline
from deploy.front.handover import GenerateCall
from deploy.front.replies import Refused
from nestedfp.vllm_plugin.frontend import collected

SHORT_S = 0.02


class Client:
    """AsyncLLM, as far as a deadline needs it, over an engine of one sequence."""

    def __init__(self):
        self.front, self.engine = FrontEnd(), Engine(max_num_seqs=1)
        self.output_processor = self.front.processor
        self.asked = 0

    def add(self, *requests, parent=None):
        with collected() as counts:
            for index, request in enumerate(requests):
                self.front.add(request, parent, index)
                self.engine.add(request)
        return counts

    async def call(self, utility, *args):
        self.asked += 1
        return getattr(self.engine.scheduler, utility)(*args)

    async def abort(self, ids, internal):
        ids = self.output_processor.abort_requests(ids, internal)
        self.engine.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)


def deadline_of(client, at_s=SHORT_S, clock=None):
    def late(in_engine):
        return Refused(503, "late in the engine" if in_engine else "late in front of it")

    queue = EngineQueue(client, client.call)
    return QueueDeadline(at_s, late, queue, clock or HandClock(0.0))


async def after(seconds=5 * SHORT_S):
    await asyncio.sleep(seconds)


def test_a_request_that_waits_in_the_engine_beyond_its_deadline_is_taken_out_and_told():
    async def scenario():
        client = Client()
        client.add(engine_request("runs", 20, max_tokens=50))
        client.engine.step()
        counts = client.add(engine_request("waits", 20))
        deadline = deadline_of(client)
        deadline.hand_over(counts)
        await after()
        assert (str(deadline.refused), deadline.refused.status) == ("late in the engine", 503)
        assert client.front.taken("waits").finished, "whoever waits for its outputs hears of it"
        assert list(client.engine.scheduler.requests) == ["runs"]

    asyncio.run(scenario())


def test_all_sequences_of_a_request_are_taken_out_together():
    async def scenario():
        client = Client()
        client.add(engine_request("runs", 20, max_tokens=50))
        client.engine.step()
        parent = ParentRequest(engine_request("two", 20, n=2))
        made = []
        for index in range(2):
            rid, params = parent.get_child_info(index)
            made.append(engine_request(rid, 20, external_id="two"))
            made[-1].sampling_params = params
        counts = client.add(*made, parent=parent)
        deadline = deadline_of(client)
        deadline.hand_over(counts)
        await after()
        assert deadline.refused is not None
        assert client.front.taken("two").finished
        assert list(client.engine.scheduler.requests) == ["runs"]
        assert not client.output_processor.parent_requests

    asyncio.run(scenario())


def test_a_request_that_has_begun_is_finished_however_late():
    async def scenario():
        client = Client()
        counts = client.add(engine_request("runs", 20, max_tokens=50))
        client.engine.schedule()  # its first step runs
        deadline = deadline_of(client)
        deadline.hand_over(counts)
        await after()
        assert (client.asked, deadline.refused) == (1, None)
        assert "runs" in client.engine.scheduler.requests

    asyncio.run(scenario())


def test_a_preempted_request_has_begun():
    engine = Engine(blocks=7)
    requests = [engine.add(engine_request(name, 32, max_tokens=48)) for name in "ab"]
    while not any(request.num_preemptions for request in requests):
        engine.step()
    assert [engine.scheduler.nestedfp_not_begun([name]) for name in "ab"] == [False, False]
    engine.add(engine_request("c", 32))
    assert engine.scheduler.nestedfp_not_begun(["c"])
    assert not engine.scheduler.nestedfp_not_begun(["c", "a"])
    assert not engine.scheduler.nestedfp_not_begun(["nobody"]), "it has left"


def test_a_request_of_which_a_sequence_has_ended_is_not_taken_out_for_those_that_wait():
    async def scenario():
        client = Client()
        client.add(engine_request("runs", 20, max_tokens=50))
        client.engine.step()
        counts = client.add(engine_request("second-child", 20))
        counts["first-child"] = object()  # as the front end notes it when a sequence ends
        deadline = deadline_of(client)
        deadline.hand_over(counts)
        await after()
        assert (deadline.refused, sorted(client.engine.scheduler.requests)) == (None, ["runs", "second-child"])
        deadline.close()

    asyncio.run(scenario())


def test_two_requests_of_one_name_do_not_end_each_other():
    async def scenario():
        client = Client()
        client.add(engine_request("runs", 20, max_tokens=50))
        client.engine.step()
        counts = client.add(engine_request("same-1", 20, external_id="same"))
        client.add(engine_request("same-2", 20, external_id="same"))
        deadline = deadline_of(client)
        deadline.hand_over(counts)
        await after()
        assert sorted(client.engine.scheduler.requests) == ["runs", "same-2"]

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["begun", "close"])
def test_nobody_is_asked_about_a_request_that_has_a_token_or_has_left(end):
    async def scenario():
        client = Client()
        deadline = deadline_of(client)
        deadline.hand_over(client.add(engine_request("a", 20)))
        getattr(deadline, end)()
        await after()
        assert (client.asked, deadline.refused) == (0, None)

    asyncio.run(scenario())


def test_a_token_that_comes_while_the_engine_is_asked_keeps_the_request():
    async def scenario():
        client = Client()
        client.add(engine_request("runs", 20, max_tokens=50))
        client.engine.step()
        answered = asyncio.Event()
        straight = client.call

        async def slow(*args):
            answer = await straight(*args)
            await answered.wait()
            return answer

        client.call = slow
        deadline = deadline_of(client)
        deadline.hand_over(client.add(engine_request("a", 20)))
        await after()
        deadline.begun()
        answered.set()
        await after()
        assert deadline.refused is None
        assert "a" in client.engine.scheduler.requests

    asyncio.run(scenario())


def test_a_request_that_waited_too_long_in_front_of_the_engine_never_gets_there():
    clock = HandClock(0.0)
    deadline = deadline_of(Client(), clock=clock)
    clock.now_s = SHORT_S
    for _ in range(2):  # each of its prompts
        with pytest.raises(Refused, match="late in front of it"):
            deadline.hand_over({})


def test_the_trial_of_a_grammar_is_told_how_long_the_request_may_wait_for_it():
    told = []

    class Slow:
        async def check(self, params, left_s):
            told.append(left_s)
            raise Refused(503, "not in time")

    async def scenario():
        clock = HandClock(0.0)
        deadline = QueueDeadline(4.0, lambda in_engine: Refused(503, "late"), None, clock)
        context = RequestContext(PathMeter(clock), 0.0, deadline=deadline)
        clock.now_s = 1.5
        call = GenerateCall(None, None, SamplingParams(), "r", {}, Slow())
        with pytest.raises(Refused, match="not in time"):
            await call.start(context)
        assert str(context.refused) == "not in time"
        clock.now_s = 9.0
        with pytest.raises(Refused):
            await context.tries(Slow(), SamplingParams())
        with pytest.raises(Refused):
            await RequestContext(PathMeter(clock), 0.0).tries(Slow(), SamplingParams())
        other = QueueDeadline(4.0, lambda in_engine: Refused(503, "late"), None, HandClock(0.0))
        other.hand_over({})
        assert other.left_s is None, "a prompt of it is there"

    asyncio.run(scenario())
    assert told == [2.5, 0.0, None]


def test_an_engine_that_does_not_answer_keeps_the_request():
    async def scenario():
        client = Client()
        counts = client.add(engine_request("a", 20))

        async def dead(*args):
            raise RuntimeError("dead")

        client.call = dead
        deadline = deadline_of(client)
        deadline.hand_over(counts)
        await after()
        assert deadline.refused is None

    asyncio.run(scenario())


def test_where_the_engine_cannot_be_asked_only_the_way_to_it_is_watched():
    clock = HandClock(0.0)
    deadline = QueueDeadline(1.0, lambda in_engine: Refused(503, "late"), None, clock)
    deadline.hand_over({})
    clock.now_s = 2.0
    deadline.hand_over({})  # its second prompt, the first of which is there
    assert deadline.refused is None
