"""A corpus of hostile requests, the same at every run: sent by mistake, or to do harm.

``cases()`` makes it from the fields below and the values of ``hostile_corpus.txt``, one JSON text a line under each heading, and
damages some of these requests at random. None of them asks for more than a few tokens. ``send_all()`` sends them.
"""

import asyncio
import collections
import functools
import itertools
import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

MODEL = "fairytales-8m"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
BASE = {
    COMPLETIONS: {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 2},
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
}


@dataclass(frozen=True)
class HostileRequest:
    """One request; ``name`` says what is odd about it."""

    name: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Raw(str):
    """JSON text that ``json.dumps`` would not write."""


def texts(heading: str) -> list[Any]:
    """Return what stands under a heading of hostile_corpus.txt, as it is written."""
    _, _, found = (
        Path(__file__).with_name("hostile_corpus.txt").read_text(encoding="utf-8").partition(f"## {heading}\n")
    )
    return [Raw(line) for line in found.partition("## ")[0].splitlines()]


def loaded(heading: str) -> list[dict[str, Any]]:
    """Return the objects under a heading of hostile_corpus.txt."""
    return [json.loads(text) for text in texts(heading)]


# Values that a field may be given, as JSON.
VALUES: list[Any] = [*texts("values"), "é" * 1000]
# Fields of vLLM's requests, of OpenAI's, and of nobody's.
SHARED_FIELDS = """
    model echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options
    temperature top_p user use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    allowed_token_ids prompt_logprobs add_special_tokens response_format structured_outputs priority request_id
    return_token_ids cache_salt kv_transfer_params vllm_xargs truncate_prompt_tokens bad_words
"""
FIELDS = {
    COMPLETIONS: f"""{SHARED_FIELDS}
    prompt suffix prompt_embeds best_of logits_processors repetition_detection nobody_knows_this_one
    """.split(),
    CHAT: f"""{SHARED_FIELDS}
    messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning
    parallel_tool_calls add_generation_prompt continue_final_message documents chat_template chat_template_kwargs
    media_io_kwargs mm_processor_kwargs return_prompt_text logprob_token_ids service_tier metadata
    """.split(),
}


def encode(value: Any) -> str:
    """JSON of a value that may hold ``Raw`` parts."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{encode(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(encode, value)) + "]"
    return json.dumps(value)


def post(name: str, path: str, body: Any, headers: dict[str, str] | None = None) -> HostileRequest:
    raw = body if isinstance(body, bytes) else encode(body).encode("utf-8", "surrogatepass")
    return HostileRequest(name, "POST", path, tuple((JSON if headers is None else headers).items()), raw)


def wrong_types() -> list[HostileRequest]:
    """Every field with every value."""
    return [
        post(f"{path} {field}={encode(value)[:40]}", path, {**BASE[path], field: value})
        for path in FIELDS
        for field in FIELDS[path]
        for value in VALUES
    ]


def bad_json() -> list[HostileRequest]:
    good = encode(BASE[COMPLETIONS]).encode()
    bodies = {
        "empty": b"",
        "blank": b" \n",
        "null": b"null",
        "number": b"1",
        "string": b'"x"',
        "list": b"[]",
        "list of requests": b"[" + good + b"]",
        "byte order mark": b"\xef\xbb\xbf" + good,
        "utf-16": good.decode().encode("utf-16"),
        "utf-32": good.decode().encode("utf-32"),
        "latin-1": b'{"model": "fairytales-8m", "prompt": "\xe9", "max_tokens": 2}',
        "overlong utf-8": b'{"model": "fairytales-8m", "prompt": "\xc0\xaf", "max_tokens": 2}',
        "control character": b'{"model": "fairytales-8m", "prompt": "\x01", "max_tokens": 2}',
        "single quotes": good.replace(b'"', b"'"),
        "trailing comma": good[:-1] + b",}",
        "two objects": good + good,
        "comment": b"// hello\n" + good,
        "duplicate key": good[:-1] + b',"max_tokens":-5}',
        "deep list": b"[" * 50_000 + b"]" * 50_000,
        "deep list as prompt": b'{"model":"fairytales-8m","max_tokens":2,"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}",
        "deep object": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        "long number": b'{"model":"fairytales-8m","prompt":"x","max_tokens":' + b"9" * 20_000 + b"}",
        "long key": b'{"' + b"k" * 200_000 + b'":1}',
        "many keys": ("{" + ",".join(f'"k{i}":{i}' for i in range(20_000)) + "}").encode(),
        "null bytes": b"\0" * 1000,
        "form": b"model=fairytales-8m&prompt=x",
    }
    cases = [post(f"body: {name}", path, body) for path in BASE for name, body in bodies.items()]
    cases += [post(f"cut at {at}", COMPLETIONS, good[:at]) for at in range(1, len(good) - 1)]
    rng = random.Random(1)
    for number in range(150):
        broken = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        cases.append(post(f"flipped bytes {number}", COMPLETIONS, bytes(broken)))
    return cases


def odd_prompts() -> list[HostileRequest]:
    ids = [[4096], [4095], [4097], [-1], [2**31], [2**63], [2**64], [10**30], [0] * 5, [1.5], ["1"], [True], [None]]
    prompts: list[Any] = [
        *texts("prompts"),
        *ids,
        *[[each] for each in ids],
        ["x"] * 2000,
        [[1]] * 2000,
        [5] * 100_000,
        "word " * 20_000,
        "👩‍👩‍👧‍👦" * 50,
    ]
    extras: list[dict[str, Any]] = [{}, {"stream": True}, {"echo": True, "logprobs": 1}, {"add_special_tokens": False}]
    return [
        post(f"prompt {encode(prompt)[:40]} {extra}", COMPLETIONS, {**BASE[COMPLETIONS], "prompt": prompt, **extra})
        for prompt in prompts
        for extra in extras
    ]


def odd_messages() -> list[HostileRequest]:
    contents: list[Any] = [*texts("contents"), "x" * 50_000]
    roles: list[Any] = ["user", "assistant", "system", "tool", "developer", "nobody", "", None, 1, [], {}]
    bodies: list[Any] = [[{"role": role, "content": content}] for role in roles for content in contents]
    bodies += [*texts("messages"), [{"role": "user", "content": "x"}] * 3000]
    return [
        post(f"messages {encode(messages)[:60]}", CHAT, {**BASE[CHAT], "messages": messages}) for messages in bodies
    ]


def structured() -> list[HostileRequest]:
    deep: Any = {"type": "string"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    schemas: list[Any] = [
        *texts("schemas"),
        {"enum": ["x" * 200] * 2000},
        {"enum": [f"value {i}" for i in range(5000)]},
        {"const": {"a": [1] * 1000}},
        {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(2000)}},
        {"anyOf": [{"type": "string"}] * 500},
        deep,
    ]
    regexes: list[Any] = [*texts("regexes"), "(a|b|ab)*c" * 100, "x" * 50_000]
    choices: list[Any] = [
        *texts("choices"),
        ["x" * 5000] * 100,
        [f"{i}-" + "y" * 5000 for i in range(100)],
        [f"{i}" for i in range(20_000)],
    ]
    grammars: list[Any] = [
        *texts("grammars"),
        'root ::= "a"' + ' | "b"' * 20_000,
        "root ::= (" * 500,
        "\n".join(f'r{i} ::= r{i + 1} r{i + 1}\nroot ::= r0 "a"' for i in range(200)),
    ]
    objects: list[Any] = [{}, [], "x", 1, None, {"nothing": 1}, {"json": {}, "regex": "a"}, {"json_object": 1}]
    objects += [{"json": each} for each in schemas]
    objects += [{"regex": each} for each in regexes]
    objects += [{"choice": each} for each in choices]
    objects += [{"grammar": each} for each in grammars]
    objects += [{"structural_tag": each} for each in ("", "{", "{}", '{"structures":[]}', 1, {"triggers": 1}, None)]
    objects += [{"json_object": each} for each in (True, False, None, "x")]
    objects += [{"regex": "[a-c]{3}", "whitespace_pattern": each} for each in ("(", "", 1)]
    formats: list[Any] = [
        *texts("formats"),
        *[{"type": "json_schema", "json_schema": {"name": "x", "schema": each}} for each in schemas],
    ]
    cases = [
        post(f"structured {encode(each)[:60]}", path, {**BASE[path], "structured_outputs": each})
        for path in BASE
        for each in objects
    ]
    cases += [
        post(f"format {encode(each)[:60]}", path, {**BASE[path], "response_format": each})
        for path in BASE
        for each in formats
    ]
    return cases


def large() -> list[HostileRequest]:
    """Numbers and lists that would cost much if they were believed."""
    bodies: list[dict[str, Any]] = [
        *loaded("fields"),
        {"n": 1000, "prompt": ["x"] * 1000},
        {"stop": ["x"] * 100_000},
        {"stop": ["x" * 100_000]},
        {"stop": [f"{i}" for i in range(50_000)]},
        {"stop_token_ids": list(range(100_000))},
        {"allowed_token_ids": list(range(100_000))},
        {"bad_words": ["x"] * 50_000},
        {"logit_bias": {str(i): 100 for i in range(50_000)}},
        {"seed": 7, "prompt": "word " * 150, "temperature": 1},
        {"cache_salt": "x" * 100_000},
        {"request_id": "x" * 10_000},
        {"user": "x" * 100_000},
        {"vllm_xargs": {f"k{i}": i for i in range(10_000)}},
        {"chat_template_kwargs": {"x": "y" * 10_000}},
    ]
    return [post(f"large {encode(body)[:60]}", path, {**BASE[path], **body}) for path in BASE for body in bodies]


def odd_headers() -> list[HostileRequest]:
    kinds = [
        "",
        "text/plain",
        "application/xml",
        "multipart/form-data",
        "application/json; charset=utf-16",
        "json",
        ";",
    ]
    pins = ["exact", "fast", "fp16", "FP16", "fp8", "auto", "", "fp16, fp16", "x" * 5000, "\xff", "16"]
    ids = ["", "x" * 8000, "../../etc", "a b", "%00", "\xe9", "{}"]
    more: list[dict[str, str]] = [*loaded("headers"), {"X-Forwarded-For": "x" * 1000}, {"X-Session-Id": "x" * 4000}]
    cases = []
    for path in BASE:
        cases += [post(f"{path} content type {kind}", path, BASE[path], {"Content-Type": kind}) for kind in kinds]
        cases += [
            post(f"{path} pin {pin[:20]!r}", path, BASE[path], {**JSON, "x-nestedfp-precision": pin}) for pin in pins
        ]
        cases += [post(f"{path} id {each[:20]!r}", path, BASE[path], {**JSON, "X-Request-Id": each}) for each in ids]
        cases += [post(f"{path} header {each}"[:80], path, BASE[path], {**JSON, **each}) for each in more]
    return cases


def other_routes() -> list[HostileRequest]:
    cases = [
        HostileRequest(f"{method} {path}", method, path, (), b"")
        for path, method in itertools.product(
            texts("paths"), ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH")
        )
    ]
    cases += [HostileRequest("a long path", "GET", "/v1/" + "x" * 6000, (), b"")]
    cases += [HostileRequest("an unknown method", "BREW", "/v1/completions", (), b"")]
    orders: list[Any] = texts("directives")
    # Without the key: none of them may have an effect.
    cases += [post(f"admin {encode(each)[:50]}", "/admin/directive", each) for each in orders]
    return cases


DAMAGED = 500  # requests that are damaged besides
MOST_DAMAGED_BYTES = 20_000  # of a body: what is wrong with a larger one is its size, which the corpus has


@functools.cache
def cases() -> tuple[HostileRequest, ...]:
    """All of them, in an order that mixes the kinds. Making them takes seconds."""
    kinds = (wrong_types, bad_json, odd_prompts, odd_messages, structured, large, odd_headers, other_routes)
    made = [case for kind in kinds for case in kind()]
    source = random.Random(0)
    source.shuffle(made)
    sound = [case for case in made if case.method == "POST" and 2 < len(case.body) < MOST_DAMAGED_BYTES]
    return (*made, *(replace(case, body=_damaged(case.body, source)) for case in source.choices(sound, k=DAMAGED)))


def _damaged(body: bytes, source: random.Random) -> bytes:
    """Return a body that was cut, or some of whose bytes were changed, left out, put in or put in twice."""
    at = source.randrange(len(body))
    end = min(len(body), at + source.randint(1, 8))
    other = source.randbytes(source.randint(1, 4))
    return source.choice(
        (
            body[:at],
            body[:at] + other + body[end:],
            body[:at] + body[end:],
            body[:at] + other + body[at:],
            body[:end] + body[at:],
        )
    )


@dataclass(frozen=True, slots=True)
class HostileAnswer:
    """A hostile request and what came of it."""

    case: HostileRequest
    came: int | httpx.HTTPError  # status, or why there is none
    took_s: float
    text: str  # of the answer


def send_all(url: str, cases: Iterable[HostileRequest], limit_s: float, workers: int = 6) -> list[HostileAnswer]:
    """Send every case, so many at a time. One silent for ``limit_s`` is given up."""
    waiting, done = collections.deque(cases), list[HostileAnswer]()

    async def work() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=limit_s, trust_env=False) as own:
            while waiting:
                case = waiting.popleft()
                headers = [(name.encode(), value.encode("latin-1")) for name, value in case.headers]
                began_s = time.monotonic()
                try:
                    try:
                        answer = await own.request(case.method, case.path, headers=headers, content=case.body)
                    except httpx.RemoteProtocolError:  # a connection kept open may end just then; clients try again
                        answer = await own.request(case.method, case.path, headers=headers, content=case.body)
                    done.append(HostileAnswer(case, answer.status_code, time.monotonic() - began_s, answer.text))
                except httpx.HTTPError as error:
                    done.append(HostileAnswer(case, error, time.monotonic() - began_s, ""))

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(workers)))

    asyncio.run(main())
    return done
