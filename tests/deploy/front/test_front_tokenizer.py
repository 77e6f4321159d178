"""Whoever has much to read holds nobody else: what reaches the tokenizer and the event loop is bounded, admitted and charged."""

import asyncio
import hashlib
import json
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
from deploy.front.checks.requests import LEAST_PROMPT_TOKENS, MOST_IDS
from deploy.front.context import PathMeter
from deploy.front.generate import Generate
from deploy.front.routes import text, tokens

vllm = pytest.importorskip("vllm")

from vllm.entrypoints.openai.models.protocol import BaseModelPath  # noqa: E402
from vllm.entrypoints.openai.models.serving import OpenAIModelRegistry  # noqa: E402
from vllm.entrypoints.serve.tokenize.serving import ServingTokenization  # noqa: E402
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
    models = OpenAIModelRegistry(config.model_config, [BaseModelPath("m", "m")])
    online = OnlineRenderer(
        config.model_config, renderer, request_logger=None, chat_template=None, chat_template_content_format="auto"
    )
    serving = ServingTokenization(models, online, chat_template=None, chat_template_content_format="auto")

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
        others = dict.fromkeys(("openai_serving_chat", "openai_serving_responses", "anthropic_serving_messages"))
        state = SimpleNamespace(openai_serving_completion=Completions(), **others)
        routes = text.routes(state) | tokens.routes(serving)
        admission = admission or Admission(None, 64, longest=CONTEXT)
        return Front(None, Generate(routes, Client(), admission, PathMeter(), PeerView(), limit, keys))

    yield make
    renderer.shutdown()


def tokenize(prompt, **more):
    return {"model": "m", "prompt": prompt, **more}


HEAVY = {
    "texts to tokens": ("/tokenize", tokenize(" " * (LONGEST - 4))),
    "a chat's": ("/tokenize", {"model": "m", "messages": [{"role": "user", "content": "a" * (LONGEST - 4)}]}),
    "tokens to texts": ("/detokenize", {"model": "m", "tokens": [100] * LEAST_PROMPT_TOKENS}),
    "a prompt that is truncated": (PATH, tokenize(" " * (LONGEST - 4), truncate_prompt_tokens=1, max_tokens=1)),
    "many prompts": (PATH, tokenize(["once upon a time " * 200] * 200, truncate_prompt_tokens=1, max_tokens=1)),
    "many that are short": ("/tokenize", tokenize(" " * 30_000)),
}


@pytest.mark.parametrize("kind", HEAVY)
def test_a_neighbours_small_completion_does_not_wait_for_who_has_much_to_read(service, kind):
    path, body = HEAVY[kind]
    app = service()
    body = json.dumps(body).encode()

    async def attacked():
        assert (await asking(app, PATH, body=tokenize("Once")))[0] == 200
        asked = 4 if kind == "many prompts" else 40
        attack = [asyncio.create_task(asking(app, path, body=body)) for _ in range(asked)]
        worst_s = 0.0
        for _ in range(8):
            await asyncio.sleep(0.03)
            began_s = time.monotonic()
            status, _, _ = await asking(app, PATH, body=tokenize("Once upon a time", max_tokens=16))
            worst_s = max(worst_s, time.monotonic() - began_s)
            assert status == 200
        still = [each for each in attack if not each.done()]
        for each in still:
            each.cancel()
        ended = await asyncio.gather(*attack, return_exceptions=True)
        return worst_s, still, {each[0] for each in ended if isinstance(each, tuple)}

    worst_s, still, statuses = asyncio.run(attacked())
    assert still, "the tokenizer was busy all the time"
    assert statuses <= {200, 400}
    assert worst_s < HELD_S


def test_a_text_that_is_far_longer_than_the_context_is_not_read(service):
    app = service()
    bodies = [
        ("/tokenize", tokenize(" " * 8_000_000)),
        ("/tokenize", {"model": "m", "messages": [{"role": "user", "content": "x" * 8_000_000}]}),
        ("/detokenize", {"model": "m", "tokens": [1] * (LEAST_PROMPT_TOKENS + 1)}),
        (PATH, tokenize(" " * 8_000_000, truncate_prompt_tokens=1)),
        (PATH, tokenize([" " * (LONGEST + 8)] * 4, truncate_prompt_tokens=1)),
    ]
    for path, body in bodies:
        began_s = time.monotonic()
        answer = ask(app, path, body=body)
        assert answer[0] == 400
        assert error_of(answer).startswith(
            f"This model's maximum context length is {CONTEXT} tokens. However, the prompt has"
        )
        assert time.monotonic() - began_s < HELD_S


@pytest.mark.parametrize("ids", [[1] * (3_000_000), [[7] * 3000] * 900], ids=["one prompt", "many"])
def test_very_many_token_ids_are_refused_before_anybody_looks_at_each(service, ids):
    app, body = service(), json.dumps(tokenize(ids), separators=(",", ":")).encode()
    began_s = time.monotonic()
    answer = ask(app, body=body)
    assert answer[0] == 400
    assert f"and {MOST_IDS} token ids, got one of more" in error_of(answer)
    assert time.monotonic() - began_s < HELD_S


def test_commas_in_a_text_are_no_token_ids(service):
    assert ask(service(), "/tokenize", body=tokenize("," * (LONGEST - 4)))[0] == 200
    answer = ask(service(), "/tokenize", body=tokenize("," * 2_000_000))
    assert "maximum context length" in error_of(answer)


def test_bad_words_of_very_many_characters_are_refused(service):
    answer = ask(service(), body=tokenize("x", bad_words=["a" * 5000]))
    assert answer[0] == 400
    assert error_of(answer) == "bad_words: at most 4096 characters in one request, got 5000"


@pytest.mark.parametrize(
    ("path", "body", "used"),
    [
        ("/tokenize", tokenize("Once upon a time"), None),
        ("/detokenize", {"model": "m", "tokens": [100, 200, 300]}, 3),
        (PATH, tokenize("a b " * 2000), 2000),  # too long for the context once it is tokenized
    ],
)
def test_what_is_read_is_admitted_and_charged(service, tmp_path, path, body, used):
    entry = {"name": "u", "tokens_per_minute": 60_000, "sha256": hashlib.sha256(b"secret").hexdigest()}
    (tmp_path / "keys.yaml").write_text(json.dumps({"keys": [entry]}))
    keys = Keys(tmp_path / "keys.yaml", clock=lambda: 0.0)
    admission = Admission(1, 8, longest=CONTEXT)
    app, headers = service(admission, keys), {"authorization": "Bearer secret"}
    assert ask(app, path, body=body)[0] == 401
    place = admission.enter(Asked())
    assert ask(app, path, body=body, headers=headers)[0] == 429
    place.leave()
    answer = ask(app, path, body=body, headers=headers)
    used = json.loads(answer[2])["count"] if used is None else used
    assert keys.holder("Bearer secret")._tokens._used == used > 0
    assert (admission.inside, admission.tokens_inside) == (0, 0)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tokenize", b'{"prompt": 5}', "Input should be a valid string, at prompt"),
        ("/tokenize", b'{"messages": 5}', "Input should be a valid array, at messages"),
        ("/tokenize", b'{"model": "m", "prompt": "x", "vllm_xargs": 5}', "vllm_xargs: expected an object, got 5"),
        ("/detokenize", b'{"tokens": [1, "a"]}', "Input should be a valid integer, at tokens.1"),
        ("/detokenize", b"{}", "Field required, at tokens"),
        ("/tokenize", b"{1}", "the body is no JSON: "),
        ("/tokenize", b'{"model": "other", "prompt": "x"}', "The model `other` does not exist"),
    ],
)
def test_bodies_of_the_tokenizers_routes_are_refused_as_those_of_others(service, path, body, message):
    answer = ask(service(), path, "POST", body)
    assert answer[0] in (400, 404)
    assert error_of(answer).startswith(message)


def test_the_tokenizers_routes_answer_as_vllms_do(service):
    app = service()
    status, _, body = ask(app, "/tokenize", body=tokenize("Once upon a time", return_token_strs=True))
    told = json.loads(body)
    assert (status, told["count"], told["max_model_len"]) == (200, len(told["tokens"]), CONTEXT)
    assert len(told["token_strs"]) == told["count"]
    back = ask(app, "/detokenize", body={"model": "m", "tokens": told["tokens"]})
    assert "Once upon a time" in json.loads(back[2])["prompt"]
    chat = ask(app, "/tokenize", body={"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
    assert json.loads(chat[2])["count"] > 1
