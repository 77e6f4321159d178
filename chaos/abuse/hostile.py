"""A corpus of hostile requests, the same at every run: what clients send by mistake, and what they send to do harm.

``cases()`` makes it from lists of fields and values rather than keeping five thousand bodies in files, ``malformed()`` damages
them at random into as many more as are wanted.
None of the requests asks for more than a few tokens; what they may take is the time of an error.
"""

import functools
import itertools
import json
import random
from dataclasses import dataclass, replace
from typing import Any

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


# Values that a field may be given, as JSON.
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**40,
    0.5,
    -0.0,
    Raw("1e20"),
    Raw("1e308"),
    Raw("1e999"),
    Raw("NaN"),
    Raw("-Infinity"),
    "",
    "x",
    "\u0000",
    Raw(r'"\ud800"'),
    "é" * 1000,
    [],
    [None],
    [[]],
    ["a", 1],
    [-1],
    {},
    {"": None},
    {"type": "x"},
    {"a": {"b": [1, {"c": None}]}},
]
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
        *ids,
        *[[each] for each in ids],
        [1, [2]],
        [[1], "x"],
        ["", ""],
        [[], [1]],
        [[1], []],
        ["x"] * 2000,
        [[1]] * 2000,
        [5] * 100_000,
        "word " * 20_000,
        "\u0000\u0001\ufffe",
        Raw(r'"\ud83d"'),
        Raw(r'"\udc00\ud800"'),
        "\u202e\u200b\u2028",
        "👩‍👩‍👧‍👦" * 50,
        "<|endoftext|>",
        "<s></s><unk>",
        {"prompt": "x"},
        {"prompt_token_ids": [1]},
        [{"prompt": "x"}],
        [{"prompt_token_ids": [4096]}],
    ]
    extras: list[dict[str, Any]] = [{}, {"stream": True}, {"echo": True, "logprobs": 1}, {"add_special_tokens": False}]
    return [
        post(f"prompt {encode(prompt)[:40]} {extra}", COMPLETIONS, {**BASE[COMPLETIONS], "prompt": prompt, **extra})
        for prompt in prompts
        for extra in extras
    ]


def odd_messages() -> list[HostileRequest]:
    contents: list[Any] = [
        None,
        "",
        1,
        Raw(r'"\ud800"'),
        [],
        [None],
        ["x"],
        [{}],
        [{"type": "text"}],
        [{"type": "text", "text": None}],
        [{"type": "text", "text": 1}],
        [{"type": "text", "text": "x"}] * 3,
        [{"type": "image_url"}],
        [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}],
        [{"type": "image_url", "image_url": {"url": "file:///dev/null"}}],
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
        [{"type": "image_url", "image_url": "x"}],
        [{"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}],
        [{"type": "video_url", "video_url": {"url": "x"}}],
        [{"type": "audio_url", "audio_url": None}],
        [{"type": "refusal", "refusal": 1}],
        [{"type": "thinking", "thinking": []}],
        [{"type": "no_such_type", "x": 1}],
        {"type": "text", "text": "x"},
        "x" * 50_000,
    ]
    roles: list[Any] = ["user", "assistant", "system", "tool", "developer", "nobody", "", None, 1, [], {}]
    bodies: list[Any] = [[{"role": role, "content": content}] for role in roles for content in contents]
    bodies += [
        [None],
        [1],
        ["x"],
        [[]],
        [{}],
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "assistant", "tool_calls": None}],
        [{"role": "assistant", "tool_calls": 1}],
        [{"role": "assistant", "tool_calls": [{}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": [{"id": 1, "type": "function", "function": {"name": 1, "arguments": 2}}]}],
        [{"role": "tool", "tool_call_id": 1, "content": "x"}],
        [{"role": "user", "content": "x", "name": 1}],
        [{"role": "user", "content": "x"}] * 3000,
    ]
    return [
        post(f"messages {encode(messages)[:60]}", CHAT, {**BASE[CHAT], "messages": messages}) for messages in bodies
    ]


def structured() -> list[HostileRequest]:
    deep: Any = {"type": "string"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    schemas: list[Any] = [
        {},
        [],
        "x",
        1,
        None,
        True,
        "{",
        '{"type": "object"}',
        {"type": "nothing"},
        {"type": ["object", 1]},
        {"$ref": "#"},
        {"$ref": "#/definitions/none"},
        {"$ref": "http://127.0.0.1:1/schema"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
        {"type": "string", "pattern": "("},
        {"type": "string", "pattern": "(a+)+$" * 20},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 10**6},
        {"type": "array", "items": {"type": "integer"}, "minItems": 3000, "maxItems": 3000},
        {"type": "integer", "minimum": Raw("1e308")},
        {"type": "number", "multipleOf": 0},
        {"enum": []},
        {"enum": ["x" * 200] * 2000},
        {"enum": [f"value {i}" for i in range(5000)]},
        {"const": {"a": [1] * 1000}},
        {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(2000)}},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"anyOf": [{"type": "string"}] * 500},
        {"not": {}},
        {"type": "object", "patternProperties": {"^(a|b)*$": {}}},
        {"type": "object", "additionalProperties": {"$ref": "#"}},
        deep,
    ]
    regexes: list[Any] = [
        "",
        "(",
        "[",
        "*",
        "\\",
        "a{1000000}",
        "(a{1000}){1000}",
        "((((((((((a*)*)*)*)*)*)*)*)*)*)*",
        "(a|b|ab)*c" * 100,
        "[^\\x00-\\uffff]",
        "(?<=x)y",
        "(?P<n>a)(?P=n)",
        "\\p{L}+",
        "x" * 50_000,
        ".{5000}",
        "(.*a){25}",
        Raw(r'"\ud800"'),
        None,
        1,
        ["a"],
        {"a": 1},
    ]
    choices: list[Any] = [
        [],
        [""],
        [None],
        [1],
        "ab",
        {"a": 1},
        ["x" * 5000] * 100,
        [f"{i}-" + "y" * 5000 for i in range(100)],
        [f"{i}" for i in range(20_000)],
        ["a", "a"],
        [Raw(r'"\ud800"')],
        ['"quoted" \\ and \n newline'],
        ["👩‍👩‍👧‍👦", "é"],
    ]
    grammars: list[Any] = [
        "",
        " ",
        "x",
        "root ::= ",
        "root ::= root",
        "root ::= root root | root",
        'root ::= "a" root',
        'root ::= "a" other\nother ::= other',
        "root ::= other",
        'notroot ::= "a"',
        'root ::= "a"' + ' | "b"' * 20_000,
        "start: ",
        'start: "a"',
        'start: /(a+)+b/ start | "c"',
        "%ignore",
        "root ::= [",
        "root ::= (" * 500,
        "\n".join(f'r{i} ::= r{i + 1} r{i + 1}\nroot ::= r0 "a"' for i in range(200)),
        None,
        1,
        ["root"],
        Raw(r'"\ud800"'),
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
        {},
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": None},
        {"type": "json_schema", "json_schema": {}},
        {"type": "nothing"},
        {"type": "structural_tag"},
        {"type": "structural_tag", "format": {"type": "x"}},
        "json",
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
        {"n": 10**6},
        {"n": 10**9},
        {"n": 129},
        {"n": 10, "best_of": 10**6},
        {"n": 1000, "prompt": ["x"] * 1000},
        {"use_beam_search": True, "n": 10**6},
        {"use_beam_search": True, "n": 100_000, "stream": True},
        {"logprobs": 10**6},
        {"logprobs": -2},
        {"prompt_logprobs": 10**6},
        {"max_tokens": 10**9},
        {"max_tokens": 0},
        {"min_tokens": 10**9},
        {"min_tokens": 3},
        {"stop": ["x"] * 100_000},
        {"stop": ["x" * 100_000]},
        {"stop": [f"{i}" for i in range(50_000)]},
        {"stop": [""]},
        {"stop_token_ids": list(range(100_000))},
        {"stop_token_ids": [-1, 4096, 10**12]},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [4096]},
        {"allowed_token_ids": [-1]},
        {"allowed_token_ids": list(range(100_000))},
        {"bad_words": ["x"] * 50_000},
        {"bad_words": [""]},
        {"bad_words": ["\u0000"]},
        {"logit_bias": {"4096": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"1": Raw("1e308")}},
        {"logit_bias": {str(i): 100 for i in range(50_000)}},
        {"temperature": Raw("1e308")},
        {"temperature": 1e-300},
        {"top_p": 1e-300},
        {"top_k": 10**20},
        {"seed": 2**63},
        {"seed": -(2**63)},
        {"seed": 7, "prompt": "word " * 150, "temperature": 1},
        {"truncate_prompt_tokens": 10**9},
        {"truncate_prompt_tokens": -1},
        {"truncate_prompt_tokens": 0},
        {"cache_salt": "x" * 100_000},
        {"cache_salt": ""},
        {"cache_salt": "nestedfp-fp16"},
        {"request_id": "x" * 10_000},
        {"request_id": "\n\r"},
        {"user": "x" * 100_000},
        {"priority": 10**30},
        {"vllm_xargs": {"precision": "fp4"}},
        {"vllm_xargs": {"precision": None}},
        {"vllm_xargs": {"precision": 16}},
        {"vllm_xargs": {"precision": ["fp16"]}},
        {"vllm_xargs": {f"k{i}": i for i in range(10_000)}},
        {"vllm_xargs": {"precision": "fp16"}, "use_beam_search": True},
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1}},
        {"repetition_penalty": 1e-30},
        {"prompt_embeds": "AAAA"},
        {"prompt_embeds": ["AAAA"]},
        {"suffix": "x"},
        {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": "x"}},
        {"stream": True, "stream_options": {"continuous_usage_stats": True, "include_usage": True}},
        {"stream": True, "n": 3},
        {"stream": True, "n": 3, "prompt": ["a", "b"], "stream_options": {"include_usage": True}},
        {"echo": True, "max_tokens": 0, "logprobs": 1},
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}],
            "tool_choice": "auto",
        },
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
        {"tools": [{"type": "function"}]},
        {"tool_choice": {"type": "function", "function": {"name": "none"}}},
        {"chat_template": "{{ 1/0 }}"},
        {"chat_template": "{% for i in range(10**9) %}x{% endfor %}"},
        {"chat_template": "{{ messages.__class__.__mro__ }}"},
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
    more: list[dict[str, str]] = [
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "nothing"},
        {"Accept": "text/html"},
        {"Accept-Encoding": "gzip, br"},
        {"Expect": "100-continue"},
        {"X-Forwarded-For": "x" * 1000},
        {"X-Nestedfp-Attempt": "mine"},
        {"Authorization": "Bearer \xe9"},
        {"Authorization": "Basic AAAA"},
        {"Range": "bytes=0-1"},
        {"Upgrade": "websocket", "Connection": "Upgrade"},
        {"X-Request-Id": "same"},
        {"X-Data-Parallel-Rank": "99"},
        {"X-Data-Parallel-Rank": "x"},
        {"traceparent": "00-" + "z" * 40},
        {"X-Session-Id": "x" * 4000},
    ]
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
    paths = [
        "/",
        "/v1",
        "/v1/",
        "/v1/completions/",
        "//v1/completions",
        "/v1/../v1/models",
        "/v1/%2e%2e/x",
        "/v1/models/none",
        "/v1/models/%00",
        "/v1/models/fairytales-8m",
        "/docs",
        "/openapi.json",
        "/redoc",
        "/metrics",
        "/health",
        "/ping",
        "/load",
        "/server_info",
        "/reset_prefix_cache",
        "/sleep",
        "/wake_up",
        "/is_sleeping",
        "/collective_rpc",
        "/pause",
        "/resume",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/invocations",
        "/inference/v1/generate",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/score",
        "/rerank",
        "/pooling",
        "/classify",
        "/v1/audio/transcriptions",
        "/tokenize",
        "/detokenize",
        "/version",
        "/status",
        "/decisions",
        "/decisions?since=-1",
        "/decisions?since=x",
        "/decisions?since=99999999999999999999999999",
        "/status?x=%ff",
        "/admin/",
        "/admin/directive",
        "/admin/reload",
        "/admin/none",
        "/control",
        "/control/",
        "/control/none",
        "/control/openapi.json",
        "/control/docs",
        "/-/healthz",
        "/-/routes",
        "/-/x",
        "/abort_requests",
        "/start_profile",
        "/stop_profile",
        "/scale_elastic_ep",
        "/get_world_size",
        "/update_weights",
    ]
    cases = [
        HostileRequest(f"{method} {path}", method, path, (), b"")
        for path, method in itertools.product(paths, ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"))
    ]
    cases += [HostileRequest("a long path", "GET", "/v1/" + "x" * 6000, (), b"")]
    cases += [HostileRequest("an unknown method", "BREW", "/v1/completions", (), b"")]
    tokenize: list[Any] = [
        {},
        [],
        1,
        {"prompt": "x"},
        {"model": MODEL, "prompt": 1},
        {"model": MODEL, "prompt": Raw(r'"\ud800"')},
        {"model": MODEL, "prompt": "x" * 100_000},
        {"model": MODEL, "messages": None},
        {"model": MODEL, "messages": [{"role": "user", "content": [{}]}]},
        {"model": "none", "prompt": "x"},
        {"model": MODEL, "tokens": [4096]},
        {"model": MODEL, "tokens": [-1]},
        {"model": MODEL, "tokens": [10**30]},
        {"model": MODEL, "tokens": ["x"]},
        {"model": MODEL, "tokens": None},
        {"model": MODEL, "tokens": [1] * 100_000},
    ]
    cases += [
        post(f"{path} {encode(each)[:50]}", path, each) for path in ("/tokenize", "/detokenize") for each in tokenize
    ]
    orders: list[Any] = [
        {},
        [],
        None,
        {"mode": "fp4"},
        {"mode": 1},
        {"mode": "fp8", "ttl_s": Raw("1e308")},
        {"mode": "fp8", "ttl_s": Raw("NaN")},
        {"mode": "fp8", "ttl_s": -1},
        {"mode": "fp8", "x": 1},
    ]
    # Without the key: none of them may have an effect.
    cases += [post(f"admin {encode(each)[:50]}", "/admin/directive", each) for each in orders]
    return cases


@functools.cache
def cases() -> tuple[HostileRequest, ...]:
    """All of them, in an order that mixes the kinds. Making them takes seconds."""
    kinds = (wrong_types, bad_json, odd_prompts, odd_messages, structured, large, odd_headers, other_routes)
    made = [case for kind in kinds for case in kind()]
    random.Random(0).shuffle(made)
    return tuple(made)


MOST_MUTATED_BYTES = 20_000  # of a body: what is wrong with a larger one is its size, which the corpus has


def malformed(count: int, seed: int = 1) -> list[HostileRequest]:
    """The corpus, and bodies of it that were damaged at random, until there are so many; a smaller ``count`` takes its first."""
    made = list(cases()[:count])
    source = random.Random(seed)
    sound = [case for case in made if case.method == "POST" and 2 < len(case.body) < MOST_MUTATED_BYTES]
    while sound and len(made) < count:
        case = source.choice(sound)
        made.append(replace(case, name=f"damaged {case.name}", body=_damaged(case.body, source)))
    return made


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
