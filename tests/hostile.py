"""A corpus of hostile requests, the same at every run: sent by mistake, or to do harm.

``cases()`` makes it from the values of ``hostile_corpus.txt``, one JSON text a line under each heading. None of them asks for more
than a few tokens. ``send_all()`` sends them. What vLLM's fields may hold is left to schemathesis.
"""

import asyncio
import collections
import functools
import itertools
import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
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


def loaded(heading: str) -> list[Any]:
    """Return the values under a heading of hostile_corpus.txt."""
    return [json.loads(text) for text in texts(heading)]


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
    objects: list[Any] = texts("structured outputs")
    objects += [{"json": each} for each in schemas]
    objects += [{"regex": each} for each in regexes]
    objects += [{"choice": each} for each in choices]
    objects += [{"grammar": each} for each in grammars]
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
        {"n": 1000, "prompt": ["x"] * 1000},
        {"stop": ["x"] * 100_000},
        {"stop": ["x" * 100_000]},
        {"stop_token_ids": list(range(100_000))},
        {"allowed_token_ids": list(range(100_000))},
        {"bad_words": ["x"] * 50_000},
        {"logit_bias": {str(i): 100 for i in range(50_000)}},
        {"cache_salt": "x" * 100_000},
        {"request_id": "x" * 10_000},
        {"vllm_xargs": {f"k{i}": i for i in range(10_000)}},
    ]
    return [post(f"large {encode(body)[:60]}", path, {**BASE[path], **body}) for path in BASE for body in bodies]


def odd_headers() -> list[HostileRequest]:
    kinds: list[str] = loaded("content types")
    pins: list[str] = [*loaded("classes"), "x" * 5000]
    ids: list[str] = [*loaded("request ids"), "x" * 8000]
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


@functools.cache
def cases() -> tuple[HostileRequest, ...]:
    """All of them, in an order that mixes the kinds. Making them takes seconds."""
    made = [case for kind in (bad_json, odd_prompts, structured, large, odd_headers, other_routes) for case in kind()]
    random.Random(0).shuffle(made)
    return tuple(made)


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
