"""A replica's front at three times the capacity of its engine: who is let in is begun in time, the rest hears so at once.

The front, the scheduler and the front end's half of the engine are those of a replica; a step is a pause, and samples one token.
"""

import asyncio
import itertools
import json
import statistics
import time

import pytest
from vllm_parts import Engine, FrontEnd, RequestStatus, SamplingParams, engine_request  # first: it silences warnings

from deploy.access.admission import Admission
from deploy.front import handover
from deploy.front.app import Front
from deploy.front.deadline import EngineQueue
from deploy.front.generate import Generate, Queueing
from deploy.front.handover import TURN, Handover
from deploy.front.meter import PathMeter
from deploy.front.peers import PeerView
from deploy.front.routes.text import TextRoute
from deploy.front.streams import Frame

vllm = pytest.importorskip("vllm")

from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402

pytestmark = pytest.mark.slow

PATH = "/v1/completions"
STEP_S, PLACES, TOKENS = 0.02, 8, 25
CAPACITY_PER_S = PLACES / (STEP_S * TOKENS)
DEADLINE_S = 0.75
LOAD_S, LEARNED_S = 15.0, 4.0


class Client:
    """AsyncLLM over a scheduler whose steps take a known time."""

    errored = False

    def __init__(self):
        self._front, self.engine = FrontEnd(), Engine(max_num_seqs=PLACES, enable_prefix_caching=False)
        self.output_processor = self._front.processor
        self._names = itertools.count()

    async def add_request(self, request_id, prompt, params, **options):
        name = f"{request_id}-{next(self._names)}"
        kind = RequestOutputKind.DELTA
        request = engine_request(name, prompt["prompt_token_ids"], max_tokens=params.max_tokens, output_kind=kind)
        self._front.add(request)
        self.engine.add(request)
        return self._front.queues.pop(name)

    async def abort(self, ids, internal=False):
        ids = self.output_processor.abort_requests([ids] if isinstance(ids, str) else ids, internal)
        self.engine.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)

    async def call(self, utility, *args):
        return getattr(self.engine.scheduler, utility)(*args)

    async def run(self, admission):
        for number in itertools.count():
            await asyncio.sleep(STEP_S)
            if self.engine.scheduler.has_unfinished_requests():
                self._front.receive(self.engine.step())
            if number % 10 == 0:  # as the agent does
                stats = self.engine.scheduler.nestedfp_stats()
                admission.engine_has(stats["running"], stats["waiting"])


class Serving:
    """Stands where vLLM's serving object stands, for prompts that are token ids."""

    def __init__(self, client):
        self._engine = handover.EngineClientProxy(client)

    async def create(self, request, raw):
        params = SamplingParams(max_tokens=request.max_tokens)
        self._engine.generate({"prompt_token_ids": request.prompt}, params, "r", priority=request.priority)
        return Handover(TURN.get().calls[0], Frame.make("id", 1, "m", chat=False, include_usage=False))


async def ask(app, **body):
    """(status, seconds to the first bytes of the body, the body) of one request."""
    asked = {"model": "m", "prompt": [7] * 10, "max_tokens": TOKENS, "stream": True, **body}
    began_s, status, first_s, text = time.monotonic(), 0, 0.0, b""

    async def receive():
        return {"type": "http.request", "body": json.dumps(asked).encode()}

    async def send(message):
        nonlocal status, first_s, text
        status = message.get("status", status)
        text += message.get("body", b"")
        if text and not first_s:
            first_s = time.monotonic() - began_s

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "path": PATH, "method": "POST", "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    return status, first_s, text


def test_the_admitted_are_begun_in_time_the_rest_is_told_at_once_and_the_engine_is_never_idle():
    async def load():
        client, admission = Client(), Admission(None, PLACES)
        queueing = Queueing(DEADLINE_S, queue=EngineQueue(client, client.call))
        routes = {PATH: TextRoute(CompletionRequest, Serving(client), "create")}
        generate = Generate(routes, client, admission, PathMeter(), PeerView(), 10_000, queueing=queueing)
        app = Front(None, generate)
        running = asyncio.create_task(client.run(admission))
        began_s, asked = time.monotonic(), []
        for number in range(int(3 * CAPACITY_PER_S * LOAD_S)):
            due_s = number / (3 * CAPACITY_PER_S)
            await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
            asked.append((due_s, asyncio.create_task(ask(app))))
        answers = [(due_s, await task) for due_s, task in asked]
        running.cancel()
        return [answer for due_s, answer in answers if due_s > LEARNED_S], admission, client

    answers, admission, client = asyncio.run(load())
    assert {status for status, _, _ in answers} == {200, 503}
    first_s = sorted(first_s for status, first_s, _ in answers if status == 200)
    early_s = sorted(first_s for _, first_s, text in answers if b"would begin this request in about" in text)
    late = sum(b"did not begin this request before" in text for _, _, text in answers)
    print(
        f"\nof {len(answers)}: {len(first_s)} served, TTFT p50 {statistics.median(first_s):.3f} p99 "
        f"{first_s[int(len(first_s) * 0.99)]:.3f} max {first_s[-1]:.3f} s; {len(early_s)} refused at once, p50 "
        f"{statistics.median(early_s) * 1e3:.1f} p99 {early_s[int(len(early_s) * 0.99)] * 1e3:.1f} max "
        f"{early_s[-1] * 1e3:.1f} ms; {late} late"
    )
    assert len(first_s) + len(early_s) + late == len(answers)
    assert first_s[int(len(first_s) * 0.95)] < DEADLINE_S + 0.5, "a busy machine adds to it"
    assert len(early_s) > 5 * late, "told at once, not after waiting in vain"
    assert statistics.median(early_s) < 0.2, "a busy machine adds to it"
    assert not admission.inside
    assert not admission.tokens_inside
    assert not client.engine.scheduler.requests
    assert not client.output_processor.request_states
