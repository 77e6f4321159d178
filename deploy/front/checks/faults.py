"""What a client hears of a fault in its request: the most telling of pydantic's errors, at a path of the client's own fields.

Where a field may be one of several things, pydantic tells of each why it is none of them, under names of its own: ``stop.str``
and ``stop.list[str]``, ``messages.0.ChatCompletionUserMessageParam.content``. What the client meant is among them, and the
first is rarely it.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from pydantic import ValidationError

from deploy.front.replies import Refused

OF_A_VALIDATOR = "function-wrap["  # pydantic's name of every alternative whose class has a validator of its own
EXPECTED = "Input should be "
OF_ITS_WAY = re.compile(r", unable to .*| after validation")  # how pydantic came to what it says
OF_ANOTHER_KIND = re.compile(r".*_(type|parsing)")  # types of errors
# Parts of what vLLM says that are of its own insides: advice to whoever started it, dumps of its objects.
OF_ITS_INSIDES = re.compile(
    r" To increase this limit, set the \w+ environment variable\.?|: \{'.*| \(parameter=\w+(, value=.*)?\)$|max_total_tokens=",
    re.DOTALL,
)
OF_A_COMMAND_LINE = re.compile(r"(?:--enable-auto-tool-choice and )?--([a-z]+(?:-[a-z]+)+)")
OF_A_MACHINE = re.compile(r"site-packages|\.py\b|(^|[\s'\"(])/\w|0x[0-9a-f]{6}")
NO_ROOM = re.compile(r"The engine prompt length (\d+) exceeds the max_model_len (\d+)\. Please reduce prompt\.")
# The clients' names of what vLLM knows under one name.
NAMES = {
    "max_tokens": ("max_completion_tokens", "max_output_tokens"),
    "logprobs": ("top_logprobs",),
    "stop": ("stop_sequences",),
    "input_tokens": ("prompt", "messages", "input"),
    "input_text": ("prompt", "messages", "input"),
    "structured_outputs": ("structured_outputs", "response_format", "text", "output_config", "tool_choice", "tools"),
}
# What vLLM calls something that is no field: the longest first.
WORDS = {
    "structured outputs": "structured_outputs",
    "decoder prompt": "input_tokens",
    "empty conversation": "input_tokens",
    "multimodal": "input_tokens",
    "streaming is": "stream",
}
MOST_CHARACTERS = 300
MOST_OF_VLLM = 600  # its sentence on the length of the context is a long one
# That are looked at, in 0.1 s of the loop that writes all streams. A body of 8 MiB can have millions, each an object.
MOST_FAULTS = 10_000
Path = tuple[Any, ...]
NONE_LEFT = "max_tokens must be at least 1, got 0."  # vLLM, also where the prompt fills the whole context
ANSWERS = ("max_tokens", "max_completion_tokens", "max_output_tokens")  # the fields that say how long

log = logging.getLogger(__name__)


class Fault(NamedTuple):
    """One of pydantic's errors.

    Attributes:
        branch: where the last alternative begins that this is said of, pydantic's names included; empty: of no alternative.
        path: the client's own.
        kind: pydantic's type of it.
        text: what it says.
    """

    branch: Path
    path: Path
    kind: str
    text: str


def in_our_words(text: str) -> str:
    """Return an error of vLLM's in one line, without its insides, and with keys of this service's configuration for its flags."""
    from vllm.entrypoints.serve.exception_handling.utils import sanitize_message

    text = NO_ROOM.sub(lambda found: no_room(int(found[2]), int(found[1])), OF_ITS_INSIDES.sub("", text))
    text = OF_A_COMMAND_LINE.sub(lambda found: f"engine.extra.{found[1].replace('-', '_')} in the configuration", text)
    text = " ".join(sanitize_message(text).split())
    return "an internal detail" if OF_A_MACHINE.search(text) else text[:MOST_OF_VLLM]


def no_room(longest: int, tokens: int) -> str:
    """Return the sentence by which clients know that a prompt is too long for any answer to it.

    Args:
        longest: tokens of the model's context.
        tokens: of the prompt.
    """
    return (
        f"This model's maximum context length is {longest} tokens. However, your prompt contains {tokens} input tokens, which "
        "leaves none for the answer. Please reduce the length of the input prompt."
    )


def place(param: str | None, text: str, given: Mapping[str, Any]) -> str | None:
    """Return the path in the body of the field that an error of vLLM's is about.

    Args:
        param: vLLM's name of it; None: it names none.
        text: what it says.
        given: the fields of the request, by name; those that are objects may be dictionaries.
    """
    if param is None:
        lower = text.lower()
        param = next((name for word, name in WORDS.items() if word in lower), None) or _named(text, given)
    ours = next((name for name in NAMES.get(param or "", ()) if name in given), None)
    if ours or param is None or param in given:
        return ours or param
    inside = (path for path, value in _inside(given) if path[-1] == param and repr(value) in text)
    found = next(inside, (() if param in ("input_tokens", "input_text") else (param,)))
    return ".".join(map(str, found)) or None


def _inside(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the paths in objects and lists of them, with what stands there."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key), each
        yield from _inside(each, (*path, key))


def _named(text: str, given: Mapping[str, Any]) -> str | None:
    """Return the path of the field whose name stands first in a text, or between backticks."""
    paths = dict.fromkeys(given) | {
        f"{name}.{inner}": None for name, value in given.items() if isinstance(value, dict) for inner in value
    }
    words = re.findall(r"`(\w+)`", text) + re.findall(r"^\w+|\b\w+_\w+", text)
    words.append("_".join(text.lower().split()[:2]))  # "Chat template is"
    found = [path for word in words for path in paths if path.rpartition(".")[2] == word]
    return found[0] if found else None


def refusal(error: ValidationError, request: Any, within: Path = ()) -> Refused:
    """Return what the client hears of a request that is none.

    Args:
        request: what did not validate, of JSON.
        within: the path to it in the body.
    """
    if (count := error.error_count()) > MOST_FAULTS:
        return Refused(
            400,
            f"expected a body of the form in /openapi.json, got one with {count} faults, more than are looked at; a request with a "
            "few of its messages or entries hears what is wrong with them",
        )
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    faults = [_fault(each["loc"], each["type"], OF_ITS_WAY.sub("", each["msg"]), request) for each in errors]
    best = _closest(_meant(faults))
    if all(each.text.startswith(EXPECTED) for each in best):
        text = EXPECTED + " or ".join(dict.fromkeys(each.text.removeprefix(EXPECTED) for each in best))
    else:
        text = best[0].text.removeprefix("Value error, ")
    where = ".".join(map(str, (*within, *best[0].path))) or None
    return Refused(400, f"{text}, at {where}" if where else text, param=where)


def refusal_of_vllm(error: Exception, given: Mapping[str, Any]) -> Refused:
    """Return what the client hears of what one of vLLM's own validators said, or stumbled over.

    Args:
        given: see ``place``.
    """
    from vllm.exceptions import VLLMClientError

    if not isinstance(error, VLLMClientError):  # over a value of another type than it expects
        return Refused(400, f"the request has a field of a wrong type: {one_line(error)}")
    said = in_our_words(str(error.args[0]))
    return Refused(400, said, param=place(getattr(error, "parameter", None), said, given))


def of_engine(
    error: Exception, given: Mapping[str, Any], accepted: bool, constrained: bool, longest: Callable[[], int]
) -> Refused:
    """Return what the client hears of an exception of vLLM's, from its front end or its engine.

    Args:
        given: see ``place``.
        accepted: the engine has computed a token of the request.
        constrained: a grammar constrains it.
        longest: see ``of_vllm``.
    """
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.exceptions import GenerationError
    from vllm.v1.engine.exceptions import EngineGenerateError

    failed = isinstance(error, (EngineGenerateError, GenerationError))
    if not accepted and isinstance(error, EngineGenerateError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    info = create_error_response(error).error
    if constrained and failed:
        where = place("structured_outputs", "", given)
        return Refused(400, "the grammar has no way on from the text so far", param=where)
    if info.code == 500 and not (failed and accepted):
        # Before the engine's first token, or in vLLM's own handling of it, nothing but the request's content can be at fault.
        log.warning("request refused: %s: %s", type(error).__name__, one_line(error))
        return Refused(400, f"the request cannot be processed: {one_line(error)}")
    if info.code >= 500:
        log.error("request failed: %s: %s", type(error).__name__, one_line(error))
        return Refused(info.code, "the engine failed on this request")
    return of_vllm(info.code, info.message, info.param, given, longest)


def of_vllm(
    status: int, message: str, param: str | None, given: Mapping[str, Any], longest: Callable[[], int]
) -> Refused:
    """Return a refusal of vLLM's in this service's words, at the field of the client's own.

    Args:
        param: vLLM's name of the field; None: it names none.
        given: see ``place``.
        longest: returns the tokens of the model's context.
    """
    text = in_our_words(message)
    where = place(param, text, given)
    if text == NONE_LEFT and not any(given.get(name) == 0 for name in ANSWERS):
        text, where = no_room(longest(), longest()), place("input_tokens", "", given)
    elif param == "max_tokens" and where not in (None, param):
        text = text.replace(param, str(where), 1)
    return Refused(status, text, param=where)


def one_line(error: BaseException) -> str:
    """Return an exception's first line, without paths or addresses, at most 300 characters."""
    lines = str(error).splitlines()
    text = lines[0] if lines else type(error).__name__
    return "an internal detail" if "/" in text or " at 0x" in text else text[:MOST_CHARACTERS]


def _fault(place: Path, kind: str, text: str, request: Any) -> Fault:
    path: list[Any] = []
    branch: Path = ()
    value = request
    for number, part in enumerate(place, 1):
        if (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        ):
            path, value = [*path, part], value[part]
        elif kind == "missing" and number == len(place):
            path.append(part)
        else:
            branch = place[:number]
    return Fault(branch, tuple(path), kind, text)


def _meant(faults: list[Fault]) -> list[Fault]:
    """Leave out the alternatives that a word of the client's, as the role of a message, says it does not mean."""
    said = [each for each in faults if each.kind == "literal_error"]
    others = {each.branch for each in said if each.branch}
    # By what a branch begins with, and not branch by branch: a list of faulty messages has thousands of either.
    meant = [
        each for each in faults if not any(each.branch[:size] in others for size in range(1, len(each.branch) + 1))
    ]
    # A list whose entries are of no known type is nearer to one of a known type than to the text that might stand there as well.
    depth = max((len(each.path) for each in meant), default=0)
    if all(OF_ANOTHER_KIND.fullmatch(each.kind) for each in meant) and any(len(each.path) > depth for each in said):
        return said
    # Where several alternatives have one name (OF_A_VALIDATOR), what lies deeper is of the one meant.
    deeper = [each for each in faults if each.branch not in others and each.branch and each.kind != "missing"]
    return meant or deeper or said


def _closest(faults: list[Fault]) -> list[Fault]:
    """Return one error of each alternative that the request comes closest to; they are said of one place.

    The closest is one of the right type with a wrong value, then one with few errors, and of these one that lies far inside.
    """

    def rank(group: list[Fault]) -> tuple[Any, ...]:
        kind, path = group[0].kind, group[0].path
        value = 2 if not (OF_ANOTHER_KIND.fullmatch(kind) or kind == "missing") else int(kind != "missing")
        return value, -len(group), len(path), [part for part in path if isinstance(part, int)]

    if not faults[0].branch:
        return [each for each in faults if each.kind == "literal_error" and each.path == faults[0].path] or faults[:1]
    of_a_field = faults[0].path[:1] == faults[0].branch[:1]  # else the whole body may be one of several things
    rivals = [each for each in faults if each.branch and (not of_a_field or each.branch[0] == faults[0].branch[0])]
    groups = [list(group) for _, group in groupby(rivals, lambda each: each.branch)]
    for group in groups:
        if str(group[0].branch[-1]).startswith(OF_A_VALIDATOR):
            group.sort(key=lambda each: each.kind == "missing")  # of what another alternative of this name wants
    best = max(map(rank, groups))
    return [group[0] for group in groups if rank(group) == best]
