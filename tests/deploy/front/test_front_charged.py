"""A key is charged for the tokens that the engine has made, however the request ends; the engine's two halves are vLLM's."""

import asyncio

import pytest
from front_calls import GOOD, asking, front, quota
from vllm_parts import Engine, FrontEnd, ParentRequest, RequestStatus, SamplingParams, engine_request

from deploy.front.handover import EngineClientProxy

vllm = pytest.importorskip("vllm")

from vllm.sampling_params import RequestOutputKind  # noqa: E402

PROMPT, LIMIT, MADE = 50, 200, 150  # tokens


class Client:
    """AsyncLLM whose steps take no time: it makes ``MADE`` steps, says so, and waits."""

    errored = False

    def __init__(self, error=None):
        self._front, self._engine, self._error = FrontEnd(), Engine(), error
        self.waits = asyncio.Event()

    async def generate(self, prompt, params, request_id, **options):
        parent = ParentRequest(engine_request("parent", PROMPT, n=params.n)) if params.n > 1 else None
        ids = [f"r-{index}" for index in range(params.n)]
        for index, rid in enumerate(ids):
            kind = {
                "max_tokens": params.max_tokens - 100 * index,
                "output_kind": params.output_kind,
                "stop": params.stop,
            }
            request = engine_request(rid, prompt["prompt_token_ids"], **kind)
            self._front.add(request, parent, index)
            self._engine.add(request)
        try:
            for _ in range(MADE):
                self._front.receive(self._engine.step())
            if self._error is not None:
                raise self._error
            self.waits.set()
            await asyncio.Event().wait()
            yield
        finally:
            self._front.processor.abort_requests(ids, True)
            self._engine.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)


def served(client, n):
    async def do(request):
        params = SamplingParams(max_tokens=LIMIT, n=n, output_kind=RequestOutputKind.FINAL_ONLY)
        async for _ in EngineClientProxy(client).generate({"prompt_token_ids": [7] * PROMPT}, params, "r"):
            pass

    return do


@pytest.mark.parametrize(("n", "made"), [(1, MADE), (2, MADE + 100)])
def test_an_answer_in_one_piece_that_is_left_at_three_quarters_is_charged_what_was_made(tmp_path, n, made):
    keys, used = quota(tmp_path)

    async def leaves():
        client = Client()
        app = front(served(client, n), client=client, keys=keys)
        body, headers = {**GOOD, "n": n}, {"authorization": "Bearer secret"}
        asked = asyncio.create_task(asking(app, body=body, headers=headers))
        await asyncio.wait_for(client.waits.wait(), 30)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(leaves())
    assert used() == PROMPT + made
