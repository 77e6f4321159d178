"""Bounds on what one request may ask for, so that it cannot cost its neighbours much. Pure.

The grammar of a structured output is made and compiled before its first token: by xgrammar in milliseconds for what people
write, but with the square of the length of a literal. Measured there: 10 choices of 1,000 characters take half a second, 100
of 5,000 half a minute, a schema of 1,000 properties a second on a busy processor and of 2,000 seven. The bounds keep it
below a second.
"""

import json
from collections.abc import Iterable
from typing import Any

from deploy.front.replies import Refused

MOST_SEQUENCES = 1024  # prompts times n
# Of all stop strings; vLLM takes four. Each token is compared with each: the most that may come cost it 3 us.
MOST_STOP_CHARACTERS = 4096
MOST_LISTED = 1024  # bad words, token ids, biases: each is looked up at every step
MOST_ALLOWED = 1 << 18  # tokens out of which the next may be: no vocabulary has more
# Of one prompt in the mean, four characters each, where the context is shorter than a quarter of them: what is to be truncated may
# be longer than a context, and who only counts tokens too.
LEAST_PROMPT_TOKENS = 1 << 16
MOST_EXTRA_ARGUMENTS = 64
NUMBERS = ("top_k", "min_tokens", "max_tokens", "max_completion_tokens", "max_output_tokens", "priority")
INT32 = 2**31 - 1  # what the engine keeps of a number
MOST_GRAMMAR_CHARACTERS = 32_768
MOST_REGEX_CHARACTERS = 4096
MOST_LITERAL_CHARACTERS = 512
MOST_CHOICES = 2048
DEEPEST_SCHEMA = 32
MOST_SUBSCHEMAS = 512
UNCOMPILED = (
    "description",
    "title",
    "$comment",
    "examples",
    "default",
)  # of a schema; these are not part of the grammar


def check_bounds(request: Any) -> None:
    """Check a request of vLLM's for text: a completion, a chat or a response.

    Raises:
        Refused: 400 with the field, its bound and what came.
    """
    fields = vars(request)  # not getattr: it warns of a deprecated field at every request
    at_most("prompt x n", sequences(request), MOST_SEQUENCES, "sequences")
    stop = request.stop
    stops = [stop] if isinstance(stop, str) else stop or []
    at_most("stop", sum(map(len, stops)), MOST_STOP_CHARACTERS, "characters")
    if "" in stops:
        raise Refused(400, "stop holds an empty string: leave it out", param="stop")
    # The event loop makes tokens of these.
    at_most("bad_words", sum(map(len, getattr(request, "bad_words", None) or ())), MOST_STOP_CHARACTERS, "characters")
    for name in ("stop_token_ids", "bad_words", "logit_bias", "logprob_token_ids"):
        at_most(name, len(fields.get(name) or ()), MOST_LISTED, "entries")
    at_most("allowed_token_ids", len(fields.get("allowed_token_ids") or ()), MOST_ALLOWED, "entries")
    at_most("vllm_xargs", len(request.vllm_xargs or ()), MOST_EXTRA_ARGUMENTS, "entries")
    check_numbers(request, NUMBERS)
    _check_structured(request.structured_outputs)
    form = fields.get("response_format")
    if form is not None and getattr(form, "json_schema", None) is not None:
        _check_schema("response_format.json_schema", form.json_schema.json_schema)
    elif form is not None and form.type == "structural_tag":
        _check_schema("response_format", form.model_dump(mode="json"))
    text = fields.get("text")  # of a response
    if text is not None and (schema := getattr(text.format, "schema_", None)) is not None:
        _check_schema("text.format.schema", schema)
    for tool in fields.get("tools") or ():
        if (function := getattr(tool, "function", tool)) is not None:
            _check_schema("tools", getattr(function, "parameters", None))


def check_length(prompts: int, tokens: int, longest: int | None) -> None:
    """Check that the tokenizer can be given the prompts of a request.

    Args:
        prompts: of the request.
        tokens: of all of them; an estimate.
        longest: the model's context, in tokens; None: nobody knows.

    Raises:
        Refused: 400 with the bound and what came.
    """
    if longest is None or tokens <= prompts * (most := max(LEAST_PROMPT_TOKENS, 4 * longest)):
        return
    raise Refused(
        400,
        f"This model's maximum context length is {longest} tokens. However, the prompt has about {tokens // prompts}, and no more "
        f"than {most} are read at all: send less",
    )


def check_extra(request: Any) -> None:
    """Check what a request says in fields that vLLM's class of it does not have, and this service reads.

    Raises:
        Refused: 400 with the field.
    """
    given = getattr(request, "vllm_xargs", None)
    if given is not None and not isinstance(given, dict):
        raise Refused(400, f"vllm_xargs: expected an object, got {given!r:.40}", param="vllm_xargs")


def sequences(request: Any) -> int:
    """Return how many sequences the engine will have to compute for a request."""
    prompt = getattr(request, "prompt", None)
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return prompts * max(1, vars(request).get("n") or 1)


def check_numbers(request: Any, names: Iterable[str]) -> None:
    """Check that the engine can keep a request's numbers.

    Raises:
        Refused: 400 with the field, its bounds and what came.
    """
    for name in names:
        value = vars(request).get(name)  # not getattr: it warns of a deprecated field at every request
        if value is not None and not -INT32 <= value <= INT32:
            raise Refused(400, f"{name} is expected between {-INT32} and {INT32}, got {value!r:.40}", param=name)


def at_most(name: str, value: int, bound: int, unit: str) -> None:
    """Check a count.

    Raises:
        Refused: 400 with its name, its bound and what came.
    """
    if value > bound:
        raise Refused(400, f"{name}: at most {bound} {unit} in one request, got {value}", param=name)


def _check_structured(structured: Any) -> None:
    if structured is None:
        return
    name = "structured_outputs"
    if structured.choice is not None:
        if not isinstance(structured.choice, list) or not all(isinstance(each, str) for each in structured.choice):
            raise Refused(400, f"{name}.choice: expected a list of strings", param=name)
        at_most(f"{name}.choice", len(structured.choice), MOST_CHOICES, "choices")
        at_most(f"{name}.choice", sum(map(len, structured.choice)), MOST_GRAMMAR_CHARACTERS, "characters")
        at_most(
            f"{name}.choice", max(map(len, structured.choice), default=0), MOST_LITERAL_CHARACTERS, "characters each"
        )
    if structured.regex is not None:
        at_most(f"{name}.regex", len(structured.regex), MOST_REGEX_CHARACTERS, "characters")
    if structured.grammar is not None:
        at_most(f"{name}.grammar", len(structured.grammar), MOST_GRAMMAR_CHARACTERS, "characters")
        longest = max(map(len, _literals(structured.grammar)), default=0)
        at_most(f"{name}.grammar", longest, MOST_LITERAL_CHARACTERS, "characters in a literal")
    for field in ("json", "structural_tag"):
        if getattr(structured, field, None) is not None:
            _check_schema(f"{name}.{field}", getattr(structured, field))


def _literals(grammar: str) -> list[str]:
    """Return what stands between double quotes. No pattern finds them in a time in proportion: one ran for 5 s over 32 KB."""
    return grammar.replace(r"\\", "__").replace(r"\"", "__").split('"')[1::2]


def _check_schema(name: str, schema: Any) -> None:
    """Check a JSON schema, as text or parsed."""
    if isinstance(schema, str):
        at_most(name, len(schema), MOST_GRAMMAR_CHARACTERS, "characters")
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise Refused(400, f"{name}: no JSON, or nested too deep", param=name) from None
    characters = subschemas = 0
    open_: list[tuple[Any, int]] = [(schema, 0)]
    while open_:
        value, depth = open_.pop()
        at_most(name, depth, DEEPEST_SCHEMA, "levels")
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str) and len(value) == 1 and depth == 0:
                raise Refused(400, f"{name}: a schema that is nothing but a reference to itself", param=name)
            characters += sum(map(len, value))
            subschemas += 1
            at_most(name, subschemas, MOST_SUBSCHEMAS, "objects")
            open_ += [
                (each, depth + 1) for key, each in value.items() if key not in UNCOMPILED or isinstance(each, dict)
            ]
        elif isinstance(value, list):
            open_ += [(each, depth + 1) for each in value]
        elif isinstance(value, str):
            at_most(name, len(value), MOST_LITERAL_CHARACTERS, "characters in a string")
            characters += len(value)
        else:
            characters += 4
        at_most(name, characters, MOST_GRAMMAR_CHARACTERS, "characters")
