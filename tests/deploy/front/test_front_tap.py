"""Tapped streams against vLLM's way: the same events for the same outputs of an engine, in order, whatever client and engine do."""

import asyncio
import contextlib
import json
import time
from types import SimpleNamespace

import pytest
from vllm_parts import MODEL, SamplingParams, engine_request, frontend  # first: it silences third-party warnings

from deploy.access.admission import Admission
from deploy.access.peers import PeerView
from deploy.front import streams
from deploy.front.context import PathMeter
from deploy.front.generate import Generate
from deploy.front.handover import GenerateCall
from deploy.front.routes.text import Route
from deploy.front.streams import Frame, Taps
from deploy.metrics.request_metrics import RequestOutcome

vllm = pytest.importorskip("vllm")

from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.tokenizers import get_tokenizer  # noqa: E402
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, FinishReason  # noqa: E402
from vllm.v1.engine.exceptions import EngineDeadError  # noqa: E402
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector  # noqa: E402
from vllm.v1.metrics.stats import IterationStats  # noqa: E402

frontend.install()
streams.install()
TEXT = "Once upon a time the 🦊 said „naïve“ 汉字 to the wolf, and the wolf answered: 👩‍👩‍👧 is not one letter."
PREEMPTED = [EngineCoreEvent(EngineCoreEventType.PREEMPTED, 1.0)]


class Service:
    """A front with an engine's front half; the test is the engine and the clients."""

    def __init__(self, tapped=True, more=lambda: False):
        self.tokenizer = get_tokenizer(str(MODEL))
        self.processor = OutputProcessor(self.tokenizer, log_stats=True)
        self.meter = PathMeter()
        self.aborted = []
        states = self.processor.request_states
        self.generate = Generate(
            {},
            SimpleNamespace(errored=False),
            Admission(None, 1),
            self.meter,
            PeerView(),
            1 << 20,
            taps=Taps(states, more, self.meter.delivered) if tapped else Taps({}),
        )

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    async def add_request(self, request_id, prompt, params, **options):
        request = engine_request(request_id, self.ids("The fox said"))
        request.sampling_params = params
        collector = RequestOutputCollector(RequestOutputKind.DELTA, request_id)
        self.processor.add_request(request, None, None, 0, collector)
        return collector

    async def abort(self, request_id, internal):
        self.aborted.append(request_id)
        self.processor.abort_requests((request_id,), internal)

    def stream(self, name, client, **params):
        """Begin a stream; returns its task."""
        sampling = SamplingParams(max_tokens=1000, output_kind=RequestOutputKind.DELTA, **params)
        frame = Frame.make(name, 1, "m", chat=False, include_usage=True)
        call = GenerateCall(self, None, sampling, name, {}, frame=frame)
        client.context = self.meter.arrive(self.meter.clock())

        async def create(request, raw):
            return call

        route = Route(None, SimpleNamespace(create=create), "create")
        answer = self.generate._answer(route, SimpleNamespace(), {"type": "http"}, client.send, client.context)
        return asyncio.create_task(answer)

    def step(self, *outputs, made_s=None):
        """The outputs of one step of the engine: (name, tokens) and more fields; made now, unless ``made_s`` says when."""
        made = [EngineCoreOutput(name, list(ids), **more) for name, ids, more in outputs]
        stats = IterationStats()
        self.processor.process_outputs(made, time.monotonic() if made_s is None else made_s, stats)
        return stats

    def tapped(self, name):
        state = self.processor.request_states.get(name)
        return state is not None and state.nestedfp_tap is not None


class Client:
    """Keeps what it is sent; does not read while ``reads`` is not set. ASGI knows no two sends at a time."""

    def __init__(self):
        self.sent, self.reads, self.breaks = [], asyncio.Event(), False
        self.reads.set()
        self._sending = False

    async def send(self, message):
        assert not self._sending
        self._sending = True
        try:
            await self._send(message)
        finally:
            self._sending = False

    async def _send(self, message):
        if not self.reads.is_set():
            await self.reads.wait()
        if self.breaks:
            raise RuntimeError("broken")
        self.sent.append(message)

    @property
    def events(self):
        data = b"".join(message.get("body", b"") for message in self.sent).decode()
        return [line.removeprefix("data: ") for line in data.split("\n\n") if line]

    @property
    def text(self):
        found = [json.loads(each) for each in self.events if each != "[DONE]"]
        return "".join(choice["text"] for each in found for choice in each.get("choices", ()))


async def turns(count=6):
    for _ in range(count):
        await asyncio.sleep(0)


async def begun(service, **clients):
    """The tasks of streams that have had their first token, and are tapped."""
    tasks = [service.stream(name, client) for name, client in clients.items()]
    await turns()
    service.step(*((name, [300], {}) for name in clients))
    await turns()
    return tasks


def test_both_ways_send_the_same_events():
    async def main(tapped):
        service, clients = Service(tapped), {name: Client() for name in "abc"}
        tasks = [service.stream(name, client) for name, client in clients.items()]
        await turns()
        ids = service.ids(TEXT)
        for position, token in enumerate(ids):
            step = [(name, [token], {}) for name in clients]
            if position % 7 == 3:
                step[1] = ("b", [token, token], {})  # several tokens at once
            if position == 20:
                step[2] = ("c", [token], {"events": PREEMPTED})
            stats = service.step(*step)
            assert stats.num_generation_tokens == sum(len(ids) for _, ids, _ in step)
            assert len(stats.inter_token_latencies_iter) == (3 if position else 0)
            await turns()
            assert all(service.tapped(name) is tapped for name in clients)
        service.step(*((name, [2], {"finish_reason": FinishReason.STOP, "stop_reason": None}) for name in clients))
        await asyncio.gather(*tasks)
        assert not service.processor.request_states
        assert clients["a"].text == service.tokenizer.decode(ids) == clients["c"].text
        assert [client.context.completion_tokens for client in clients.values()][::2] == [len(ids) + 1] * 2
        return [client.events for client in clients.values()]

    assert asyncio.run(main(True)) == asyncio.run(main(False))


LAGS = pytest.mark.parametrize("more", [lambda: False, lambda: True], ids=["", "the loop lags"])


@LAGS
def test_tokens_of_one_turn_of_the_loop_go_out_together_and_the_end_after_them(more):
    async def main():
        service, client = Service(more=more), Client()
        (task,) = await begun(service, a=client)
        for _ in range(3):
            service.step(("a", [301], {}))
        service.step(("a", [302], {"finish_reason": FinishReason.LENGTH}))
        await task
        first, three, last, usage, done = client.events
        texts = ["".join(choice["text"] for choice in json.loads(each)["choices"]) for each in (first, three, last)]
        assert texts == [service.tokenizer.decode(ids) for ids in ([300], [301] * 3, [302])]
        assert json.loads(last)["choices"][0]["finish_reason"] == "length"
        assert json.loads(usage)["usage"]["completion_tokens"] == 5
        assert done == "[DONE]"
        assert (client.context.written_tokens, client.context.writing_since_s) == (5, None)
        now_s = service.meter.clock()
        assert (service.meter.ttft.summary(now_s).count, service.meter.tpot.summary(now_s).count) == (1, 2)
        assert service.meter.slo_evaluated == 1

    asyncio.run(main())


def test_a_write_waits_for_outputs_that_are_here_but_not_for_ever():
    async def main():
        left = [2]
        service, client = Service(more=lambda: left[0] > 0), Client()
        (task,) = await begun(service, a=client)

        async def lagging(steps):
            for left[0] in reversed(range(steps)):
                service.step(("a", [301], {}))
                await turns(1)
            await turns()
            return len(client.events)

        assert await lagging(3) == 2, "one event for three steps"
        assert await lagging(1) == 3
        assert await lagging(10) == 5, "five steps are the most that wait for each other"
        assert client.text.count(service.tokenizer.decode([301])) == 14
        task.cancel()

    asyncio.run(main())


def test_a_client_that_does_not_read_delays_nobody_and_misses_nothing():
    async def main():
        service, slow, other = Service(), Client(), Client()
        tasks = [service.stream("slow", slow), service.stream("other", other)]
        await turns()
        ids = service.ids(TEXT)
        service.step(("slow", ids[:1], {}), ("other", ids[:1], {}))
        await turns()
        slow.reads.clear()
        for token in ids[1:]:
            service.step(("slow", [token], {}), ("other", [token], {}))
            await turns()
        assert len(other.events) == len(ids)
        assert len(slow.events) == 1
        assert slow.context.writing_since_s is not None, "the meter sees that it does not read"
        slow.reads.set()
        await turns()
        assert slow.text == other.text == service.tokenizer.decode(ids)
        assert len(slow.events) == 4, "what the write held, what the task held that waited for it, and the rest"
        service.step(("slow", ids[:1], {}), ("other", ids[:1], {}))
        await turns()
        assert slow.text == other.text
        slow.reads.clear()
        ends = {"finish_reason": FinishReason.LENGTH}
        service.step(("slow", ids[1:2], {}), ("other", ids[1:2], {}))
        await turns()
        service.step(("slow", ids[2:3], ends), ("other", ids[2:3], ends))
        await tasks[1]
        assert not tasks[0].done()
        slow.reads.set()
        await tasks[0]
        assert slow.text == other.text
        assert json.loads(slow.events[-2])["usage"] == json.loads(other.events[-2])["usage"]

    asyncio.run(main())


@pytest.mark.parametrize("reads", [True, False], ids=["it reads", "it does not read"])
def test_a_client_that_leaves_takes_its_tap_along(reads):
    async def main():
        service, client = Service(), Client()
        (task,) = await begun(service, a=client)
        if not reads:
            client.reads.clear()
        service.step(("a", [301], {}))
        await turns()
        service.step(("a", [302], {}))
        state = service.processor.request_states["a"]
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await turns()
        assert service.aborted == ["a"]
        assert state.nestedfp_tap is None
        assert asyncio.all_tasks() == {asyncio.current_task()}
        before = len(client.sent)
        service.step(("a", [303], {}))
        await turns()
        assert len(client.sent) == before

    asyncio.run(main())


@LAGS
@pytest.mark.parametrize("reads", [True, False], ids=["it reads", "it does not read"])
def test_a_dead_engine_ends_the_stream_after_what_came_before(reads, more):
    async def main():
        service, client = Service(more=more), Client()
        (task,) = await begun(service, a=client)
        if not reads:
            client.reads.clear()
        service.step(("a", [301], {}))
        await turns()
        service.step(("a", [302], {}))
        service.processor.propagate_error(EngineDeadError())
        await turns()
        client.reads.set()
        await task
        assert client.context.outcome is RequestOutcome.FAILED
        error, done = client.events[-2:]
        assert json.loads(error)["error"]["code"] == 503
        assert done == "[DONE]"
        if reads:  # else the error takes the place of what vLLM holds for a client that does not read
            assert client.text == service.tokenizer.decode([300, 301, 302])

    asyncio.run(main())


@pytest.mark.parametrize("reads", [True, False], ids=["at once", "later"])
def test_a_write_that_fails_ends_its_stream_alone(reads):
    async def main():
        service, broken, other = Service(), Client(), Client()
        tasks = await begun(service, broken=broken, other=other)
        broken.breaks = True
        if not reads:
            broken.reads.clear()
        service.step(("broken", [301], {}), ("other", [301], {}))
        await turns()
        broken.reads.set()
        await turns()
        service.step(("broken", [301], {}), ("other", [302], {"finish_reason": FinishReason.LENGTH}))
        with pytest.raises(RuntimeError, match="broken"):
            await tasks[0]
        await tasks[1]
        assert service.aborted == ["broken"]
        assert other.events[-1] == "[DONE]"

    asyncio.run(main())


@pytest.mark.parametrize("params", [{"stop": ["wolf"]}, {"detokenize": False}, {"stream_interval": 4}], ids=str)
def test_what_needs_more_than_the_next_token_goes_vllms_way(params):
    async def main():
        service, client = Service(), Client()
        task = service.stream("a", client, **params)
        await turns()
        for token in service.ids(" the wolf"):
            service.step(("a", [token], {}))
            await turns()
            assert not service.tapped("a")
        task.cancel()

    asyncio.run(main())


def test_the_way_back_counts_from_when_the_engine_made_the_oldest_of_what_is_written(clock, monkeypatch):
    monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=clock))

    async def main():
        service, clients = Service(), [Client(), Client()]
        await begun(service, a=clients[0], b=clients[1])
        assert service.meter.stats(service.meter.clock()).delivery_p90_ms is None, "not by a tap"
        service.step(("a", [301], {}), made_s=clock.now_s - 0.3)
        service.step(("b", [301], {}), made_s=clock.now_s - 0.1)
        await turns()
        assert [len(client.events) for client in clients] == [2, 2]
        delivery_ms = service.meter.stats(service.meter.clock()).delivery_p90_ms
        assert delivery_ms == pytest.approx(300), "one write for both"

    asyncio.run(main())


def test_every_field_of_an_output_is_looked_at_or_known_to_say_nothing_of_a_sequence_that_goes_on():
    fields = set(EngineCoreOutput.__struct_fields__)
    fields -= {"request_id", "new_token_ids"}
    fields -= {"stop_reason", "trace_headers"}  # of an end
    fields -= {"num_nans_in_logits", "mm_cache_miss_hashes"}  # vLLM's statistics and its loop look at all outputs
    looked_at = {name for name in streams.Tap.takes.__code__.co_names if name in EngineCoreOutput.__struct_fields__}
    assert fields == looked_at - {"new_token_ids"}
    for name in fields:
        others = SimpleNamespace(**dict.fromkeys(fields), new_token_ids=[])
        open_ = object.__new__(streams.Tap)
        open_._idle, open_._writing, open_._collector = True, None, SimpleNamespace(output=None)
        setattr(others, name, "something")
        assert not open_.takes(others, None), name
