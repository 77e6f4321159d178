"""The lean stream against vLLM's own: for the same outputs of the engine both say the same, field by field."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from vllm_parts import SamplingParams, frontend  # first: it silences third-party warnings

from deploy.access.admission import Admission
from deploy.access.peers import PeerView
from deploy.front.context import PathMeter
from deploy.front.generate import Generate
from deploy.front.handover import GenerateCall
from deploy.front.routes.text import Route
from deploy.front.streams import Frame
from deploy.metrics.request_metrics import RequestOutcome
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts, usage_of
from nestedfp.vllm_plugin.serving.disclosure import StreamDiscloser

vllm = pytest.importorskip("vllm")

from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat  # noqa: E402
from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # noqa: E402
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion  # noqa: E402
from vllm.outputs import CompletionOutput, RequestOutput  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.v1.engine.exceptions import EngineDeadError  # noqa: E402
from vllm.v1.engine.output_processor import RequestOutputCollector  # noqa: E402

PROMPT = [5, 6, 7]
FINGERPRINT = "vllm-test"
ROUTE = Route(CompletionRequest, None, "create")

# Each output: text, token ids, finish reason, stop reason.
ENDINGS = {
    "length": ("", [9], "length", None),
    "stop token": ("", [2], "stop", None),
    "stop string": (" en", [9], "stop", "end"),
    "stop id": ("", [17], "stop", 17),
    "a last text without a token": ("x", [], "length", None),
    "several tokens at once": (" many words", [4, 5, 6], "length", None),
}
BEGINNINGS = {
    "nothing": [],
    "one word": [(" Once", [4], None, None)],
    "words": [(" Once", [4], None, None), (" upon", [5], None, None), (" a", [6, 7], None, None)],
    "half characters": [("", [200], None, None), ("", [201], None, None), ("é", [202], None, None)],
    "a held back stop string": [("a", [4], None, None), ("", [5], None, None), ("", [6], None, None)],
    "other alphabets": [("👩‍👩‍👧", [4], None, None), ("汉字\u2028\u0000\x7f", [5], None, None)],
    "quotes": [
        ('"}\n\n data: [DONE]', [4], None, None),
        ("\\u0041\\", [5], None, None),
        ("\t\r\n</script>", [6], None, None),
    ],
}


def counts_of(parts):
    """What the engine would count: two prompt tokens in FP16 and one in FP8, all of the answer in FP8."""
    return TokenCounts(prompt_fp16=2, prompt_fp8=1, completion_fp8=sum(len(ids) for _, ids, _, _ in parts))


def outputs_of(parts):
    made = []
    for position, (text, ids, finish, stop) in enumerate(parts):
        completion = CompletionOutput(0, text, ids, None, None, finish_reason=finish, stop_reason=stop)
        output = RequestOutput("r", None, PROMPT, None, [completion], finish is not None)
        if finish is not None:
            output.counts = counts_of(parts)
        made.append(output)
        assert position == len(parts) - 1 or finish is None
    return made


def events(data):
    """The parsed events of a stream; the times in them differ between two runs."""
    found = []
    for line in data.decode().split("\n\n"):
        if line in ("", "data: [DONE]"):
            found.append(line)
            continue
        event = json.loads(line.removeprefix("data: "))
        event.pop("created", None)
        found.append(event)
    return found


def request_of(chat, **body):
    if chat:
        return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], stream=True, **body)
    return CompletionRequest(**{"model": "m", "prompt": "x", "stream": True, **body})


def front(meter=None):
    return Generate({}, SimpleNamespace(errored=False), Admission(None, 1), meter or PathMeter(), PeerView(), 1 << 20)


async def lean(outputs, chat, include_usage):
    """What ``Generate._write`` sends for the outputs."""
    sent = []

    async def send(message):
        sent.append(message)

    collector = RequestOutputCollector(RequestOutputKind.DELTA, "r")

    class Client:
        async def add_request(self, request_id, prompt, params, **options):
            return collector

    async def feed():
        for output in outputs:
            while collector.output is not None:  # else it would be merged with the one before
                await asyncio.sleep(0)
            if output.finished:  # the engine says them then
                context.counts["r"] = output.counts
            collector.put(output)

    frame = Frame.make("id", 1, "m", chat=chat, include_usage=include_usage, fingerprint=FINGERPRINT)
    call = GenerateCall(Client(), None, SamplingParams(), "r", {}, frame=frame)
    generate = front()
    context = generate.meter.arrive(0.0)
    feeding = asyncio.create_task(feed())
    await generate._write(call, send, context)
    await feeding
    assert sent[0]["status"] == 200
    assert not sent[-1].get("more_body")
    return b"".join(message.get("body", b"") for message in sent)


async def vllms(outputs, chat, request, counts):
    """What vLLM's own generator says of them, disclosed as ``Generate._relay`` does."""

    async def results():
        for output in outputs:
            yield output

    async def numbered():
        for output in outputs:
            yield 0, output

    serving = serving_of(chat)
    metadata = RequestResponseMetadata(request_id="id")
    if chat:
        made = serving.chat_completion_stream_generator(request, results(), "id", "m", [], None, metadata)
    else:
        made = completion_events(serving, request, numbered())
    options = request.stream_options
    discloser = StreamDiscloser(lambda: usage_of(counts), bool(options and options.include_usage))
    return "".join([discloser.event(event) async for event in made]).encode()


def serving_of(chat):
    """vLLM's serving object, as far as its generators of events look at it."""
    serving = object.__new__(OpenAIServingChat if chat else OpenAIServingCompletion)
    vars(serving).update(
        enable_force_include_usage=False,
        enable_prompt_tokens_details=False,
        enable_per_request_metrics=False,
        system_fingerprint=FINGERPRINT,
        return_tokens_as_token_ids=False,
        parser_cls=None,
        model_config=SimpleNamespace(is_encoder_decoder=False),
        enable_auto_tools=False,
        enable_log_outputs=False,
        enable_log_deltas=False,
        request_logger=None,
        response_role="assistant",
        _include_reasoning_tokens_details=False,
    )
    return serving


def completion_events(serving, request, numbered, prompts=1):
    inputs = [{"type": "token", "prompt_token_ids": PROMPT, "prompt": "x"}] * prompts
    metadata = RequestResponseMetadata(request_id="id")
    return serving.completion_stream_generator(request, inputs, numbered, "id", 1, "m", prompts, None, metadata)


def plain(request, chat):
    return Route(type(request), None, "", chat).is_plain(request)


@pytest.mark.parametrize("include_usage", [False, True], ids=["", "usage asked for"])
@pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_both_say_the_same(beginning, ending, chat, include_usage):
    outputs = [*beginning, ending]
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    request = request_of(chat, **options)
    assert plain(request, chat)
    ours = asyncio.run(lean(outputs_of(outputs), chat, include_usage))
    theirs = asyncio.run(vllms(outputs_of(outputs), chat, request, counts_of(outputs)))
    assert events(ours) == events(theirs)


def test_a_part_of_a_prompt_that_was_computed_says_nothing():
    parts = [("", [], None, None), ("", [], None, None), ("a", [4], None, None), ("", [5], "length", None)]
    ours = asyncio.run(lean(outputs_of(parts), chat=False, include_usage=False))
    assert [event["choices"][0]["text"] for event in events(ours)[:2]] == ["a", ""]


@pytest.mark.parametrize("breaks", [False, True])
def test_a_stream_of_vllms_that_breaks_has_failed_and_says_nothing_about_latency(breaks):
    meter = PathMeter()
    sent = []

    async def numbered():
        for output in outputs_of([("a", [4], None, None), ("b", [5], None, None), ("", [6], "length", None)]):
            if breaks and output.finished:
                raise EngineDeadError
            yield 0, output

    async def send(message):
        sent.append(message)

    async def relayed():
        request = request_of(chat=False)

        async def create(request, raw):
            return completion_events(serving_of(chat=False), request, numbered())

        context = meter.arrive(meter.clock())
        context.id = "mine"
        route = Route(CompletionRequest, SimpleNamespace(create=create), "create")
        await front(meter)._answer(route, request, {"type": "http"}, send, context)
        return context

    context = asyncio.run(relayed())
    assert (sent[0]["status"], sent[-1].get("more_body")) == (200, None)
    errors = [message["body"] for message in sent if b'"error"' in message.get("body", b"")]
    assert [
        json.loads(event.removeprefix(b"data: ").partition(b"\n")[0])["error"]["request_id"] for event in errors
    ] == ["mine"] * breaks
    assert context.outcome is (RequestOutcome.FAILED if breaks else RequestOutcome.OK)
    assert meter.slo_evaluated == (0 if breaks else 1)


@pytest.mark.parametrize("include_usage", [False, True], ids=["", "usage asked for"])
def test_a_stream_of_two_prompts_whose_second_ends_first_ends_with_the_counts_of_both(include_usage):
    counts, sent = frontend.Collected(), []
    first = outputs_of([("a", [4], None, None), ("b", [5], None, None), ("", [6], "length", None)])
    second = outputs_of([("c", [4], None, None), ("", [2], "stop", None)])

    async def numbered():
        for prompt, output in [(0, first[0]), (1, second[0]), (1, second[1]), (0, first[1]), (0, first[2])]:
            if output.finished:  # the engine says them then
                counts[f"r-{prompt}"] = output.counts
            yield prompt, output

    async def send(message):
        sent.append(message)

    async def relayed():
        options = {"stream_options": {"include_usage": True}} if include_usage else {}
        request = request_of(chat=False, prompt=["x", "y"], **options)
        meter = PathMeter()
        generate, context = front(meter), meter.arrive(meter.clock())
        context.prompt_tokens = 6  # of both, as the engine was given them
        made = completion_events(serving_of(chat=False), request, numbered(), prompts=2)
        await generate._relay(ROUTE, made, request, send, context, counts)

    asyncio.run(relayed())
    said = events(b"".join(message.get("body", b"") for message in sent))
    assert said[-2:] == ["data: [DONE]", ""]
    ends = [choice["index"] for event in said[:-2] for choice in event["choices"] if choice["finish_reason"]]
    assert ends == [1, 0]
    both = {"prompt": {"fp16": 4, "fp8": 2, "cached": {"fp16": 0, "fp8": 0}}, "completion": {"fp16": 0, "fp8": 5}}
    last = {
        "prompt_tokens": 6,
        "completion_tokens": 5,
        "total_tokens": 11,
        "precision": "mixed",
        "precision_tokens": both,
    }
    assert said[-3]["usage"] == last, "the stream's last word"
    usages = [event["usage"] for event in said[:-2] if event.get("usage")]
    told = [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages]
    assert told == ([(6, 5)] if include_usage else [(6, 2), (6, 5)]), (
        "the prompts of all, the tokens of those that have ended"
    )


def test_counts_that_the_engine_never_said_are_left_out():
    frame = Frame.make("id", 1, "m", chat=False, include_usage=False)
    (event, *_) = events(frame.last("x", "length", None, 3, 4, None))
    assert event["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


@pytest.mark.parametrize(
    ("chat", "body"),
    [
        (False, {"n": 2}),
        (False, {"echo": True}),
        (False, {"logprobs": 0}),
        (False, {"prompt_logprobs": 1, "stream": False}),
        (False, {"return_token_ids": True}),
        (False, {"use_beam_search": True}),
        (False, {"prompt": ["a", "b"]}),
        (False, {"prompt": [[1], [2]]}),
        (False, {"stream_options": {"continuous_usage_stats": True}}),
        (True, {"n": 2}),
        (True, {"echo": True}),
        (True, {"logprobs": True}),
        (True, {"return_token_ids": True}),
        (True, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ],
)
def test_what_needs_more_than_text_goes_to_vllms_generator(chat, body):
    base = {
        "model": "m",
        "stream": True,
        **({"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}),
    }
    request = (ChatCompletionRequest if chat else CompletionRequest).model_validate({**base, **body})
    assert not plain(request, chat)


@pytest.mark.parametrize("prompt", ["x", [1, 2]])
def test_one_prompt_as_text_or_ids_is_plain(prompt):
    assert plain(CompletionRequest(model="m", prompt=prompt, stream=True), chat=False)
    assert not plain(CompletionRequest(model="m", prompt=prompt), chat=False)
