"""Whoever has much to read holds nobody else: what reaches the tokenizer and the event loop is bounded, admitted and charged."""

import asyncio
import hashlib
import json
import statistics
import time
from types import SimpleNamespace

import pytest
from front_calls import PATH, Client, ask, asking, error_of, output
from vllm_parts import engine_config

from deploy.access import tokenizer_queue
from deploy.access.admission import Admission, Asked
from deploy.access.keys import Keys
from deploy.access.peers import PeerView
from deploy.front.app import Front
from deploy.front.checks.requests import LEAST_PROMPT_TOKENS
from deploy.front.context import PathMeter
from deploy.front.generate import Generate
from deploy.front.routes import text

vllm = pytest.importorskip("vllm")

from vllm.renderers import renderer_from_config  # noqa: E402
from vllm.renderers.online_renderer import OnlineRenderer  # noqa: E402

CONTEXT = 1024
LONGEST = 4 * LEAST_PROMPT_TOKENS  # characters
HELD_S = 1.0  # a busy machine adds to it; in line behind the others it would be many seconds


@pytest.fixture(scope="module")
def config():
    return engine_config()


@pytest.fixture
def service(config):
    """Makes a front over vLLM's own tokenizer; its completions end once their prompts are tokenized."""
    renderer = renderer_from_config(config)
    tokenizer_queue.install(renderer._executor)
    online = OnlineRenderer(
        config.model_config, renderer, request_logger=None, chat_template=None, chat_template_content_format="auto"
    )

    class Completion:
        async def create_completion(self, request, raw):
            prompts = await online.preprocess_completion(request, prompt_input=request.prompt, prompt_embeds=None)
            return output(str(len(prompts)), "length")

    class Answer:
        def __init__(self, made):
            self._made = made

        def model_dump(self, mode):
            return {"prompts": self._made}

    class Completions(Completion):
        async def create_completion(self, request, raw):
            return Answer((await super().create_completion(request, raw)).outputs[0].text)

    def make(admission=None, keys=None, limit=8 << 20):
        others = dict.fromkeys(("openai_serving_chat", "openai_serving_responses"))
        state = SimpleNamespace(openai_serving_completion=Completions(), **others)
        routes = text.routes(state)
        admission = admission or Admission(None, 64, longest=CONTEXT)
        return Front(None, Generate(routes, Client(), admission, PathMeter(), PeerView(), limit, keys or Keys()))

    yield make
    renderer.shutdown()


def asking_for(prompt, **more):
    return {"model": "m", "prompt": prompt, **more}


HEAVY = {
    "a prompt that is truncated": asking_for(" " * (LONGEST - 4), truncate_prompt_tokens=1, max_tokens=1),
    "many prompts": asking_for(["once upon a time " * 200] * 200, truncate_prompt_tokens=1, max_tokens=1),
    "many that are short": asking_for(" " * 30_000, truncate_prompt_tokens=1, max_tokens=1),
}


@pytest.mark.parametrize("kind", HEAVY)
def test_a_neighbours_small_completion_does_not_wait_for_who_has_much_to_read(service, kind):
    app, body = service(), json.dumps(HEAVY[kind]).encode()

    async def attacked():
        assert (await asking(app, PATH, body=asking_for("Once")))[0] == 200
        asked = 4 if kind == "many prompts" else 40
        attack, waits_s, still = [], [], 0
        for _ in range(8):
            while sum(not each.done() for each in attack) < asked:
                attack.append(asyncio.create_task(asking(app, PATH, body=body)))
            await asyncio.sleep(0.03)
            began_s = time.monotonic()
            status, _, _ = await asking(app, PATH, body=asking_for("Once upon a time", max_tokens=16))
            waits_s.append(time.monotonic() - began_s)
            still += any(not each.done() for each in attack)
            assert status == 200
        for each in attack:
            each.cancel()
        ended = await asyncio.gather(*attack, return_exceptions=True)
        return waits_s, still, {each[0] for each in ended if isinstance(each, tuple)}

    waits_s, still, statuses = asyncio.run(attacked())
    assert still > 2, "the tokenizer was busy"
    assert statuses <= {200, 400}
    assert statistics.median(waits_s) < HELD_S  # not the longest: a busy machine may stop this process for a while


def test_a_text_that_is_far_longer_than_the_context_is_not_read(service):
    app = service()
    bodies = [
        asking_for(" " * 8_000_000, truncate_prompt_tokens=1),
        asking_for([" " * (LONGEST + 8)] * 4, truncate_prompt_tokens=1),
    ]
    for body in bodies:
        began_s = time.monotonic()
        answer = ask(app, body=body)
        assert answer[0] == 400
        assert error_of(answer).startswith(
            f"This model's maximum context length is {CONTEXT} tokens. However, the prompt has"
        )
        assert time.monotonic() - began_s < HELD_S


def test_what_is_read_and_then_too_long_for_the_context_is_admitted_and_charged(service, tmp_path):
    body = asking_for("a b " * 2000)
    entry = {"name": "u", "tokens_per_minute": 60_000, "sha256": hashlib.sha256(b"secret").hexdigest()}
    (tmp_path / "keys.yaml").write_text(json.dumps({"keys": [entry]}))
    keys = Keys(tmp_path / "keys.yaml", clock=lambda: 0.0)
    admission = Admission(1, 8, longest=CONTEXT)
    app, headers = service(admission, keys), {"authorization": "Bearer secret"}
    assert ask(app, body=body)[0] == 401
    place = admission.enter(Asked())
    assert ask(app, body=body, headers=headers)[0] == 429
    place.leave()
    assert ask(app, body=body, headers=headers)[0] == 400
    assert keys.holder("Bearer secret")._tokens._used == 2000
    assert (admission.inside, admission.tokens_inside) == (0, 0)
