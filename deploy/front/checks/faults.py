"""What a client hears of a fault in its request: pydantic's or vLLM's word of it in one line, at a field of the client's own."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from deploy.front.replies import Refused

OF_ITS_WAY = re.compile(r"^Value error, |, unable to .*| after validation")  # how pydantic came to what it says
# Parts of what vLLM says that are of its own insides: advice to whoever started it, dumps of its objects.
OF_ITS_INSIDES = re.compile(
    r" To increase this limit, set the \w+ environment variable\.?|: \{'.*| \(parameter=\w+(, value=.*)?\)$|max_total_tokens=",
    re.DOTALL,
)
OF_A_COMMAND_LINE = re.compile(r"(?:--enable-auto-tool-choice and )?--([a-z]+(?:-[a-z]+)+)")
OF_A_MACHINE = re.compile(r"site-packages|\.py\b|(^|[\s'\"(])/\w|0x[0-9a-f]{6}")
# The clients' names of what vLLM knows under one name.
NAMES = {
    "max_tokens": ("max_completion_tokens", "max_output_tokens"),
    "logprobs": ("top_logprobs",),
    "input_tokens": ("prompt", "messages", "input"),
    "input_text": ("prompt", "messages", "input"),
    "structured_outputs": ("structured_outputs", "response_format", "text", "tool_choice", "tools"),
}
NONE_LEFT = "max_tokens must be at least 1, got 0."  # vLLM, also where the prompt fills the whole context
MOST_CHARACTERS = 600  # vLLM's sentence on the length of the context is a long one
# That are looked at, in 0.1 s of the loop that writes all streams; a body of 8 MiB can have millions.
MOST_FAULTS = 10_000

log = logging.getLogger(__name__)


def refusal(error: ValidationError, body: bytes) -> Refused:
    """Return what the client hears of a body that is no request.

    Where a field may be one of several things, pydantic tells of each why it is none of them, under names of its own. Of these
    the one counts that lies deepest in the body, and there one of the right type with a wrong value.
    """
    try:
        given = from_json(body)
    except ValueError:
        return Refused(400, f"the body is no JSON: {error.errors(include_url=False)[0]['msg']}")
    if (count := error.error_count()) > MOST_FAULTS:
        return Refused(
            400, f"expected a request of OpenAI's form, got one with {count} faults, more than are looked at"
        )
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    where, told = max(((_place(each, given), each) for each in errors), key=_rank)
    text, param = OF_ITS_WAY.sub("", told["msg"]), ".".join(map(str, where)) or None
    return Refused(400, f"{text}, at {param}" if param else text, param=param)


def _rank(found: tuple[list[Any], Any]) -> tuple[Any, ...]:
    place, error = found
    kind = error["type"]
    # A literal that is another one, as a message's role, says that the alternative is not meant.
    weight = 0 if kind in ("literal_error", "missing") else 1 if kind.endswith(("_type", "_parsing")) else 2
    return len(place), weight, [part for part in place if isinstance(part, int)]


def _place(error: Any, given: Any) -> list[Any]:
    """Return pydantic's path without its own names of alternatives."""
    path: list[Any] = []
    for part in error["loc"]:
        if (isinstance(given, dict) and part in given) or (isinstance(given, list) and part in range(len(given))):
            path.append(part)
            given = given[part]
    return [*path, error["loc"][-1]] if error["type"] == "missing" else path


def of_engine(
    error: Exception, given: Mapping[str, Any], begun: bool, constrained: bool, longest: int | None
) -> Refused:
    """Return what the client hears of an exception of vLLM's, from its front end or its engine.

    Args:
        begun: the engine has computed a token of the request.
        constrained: a grammar constrains it.
    """
    from vllm.exceptions import GenerationError
    from vllm.v1.engine.exceptions import EngineGenerateError

    failed = isinstance(error, (EngineGenerateError, GenerationError))
    if constrained and failed:
        return Refused(400, "the grammar has no way on from the text so far", param=place("structured_outputs", given))
    if failed and begun:
        log.error("request failed: %s: %s", type(error).__name__, one_line(str(error)))
        return Refused(500, "the engine failed on this request")
    cause = error.__cause__ if isinstance(error, EngineGenerateError) else None
    return of_vllm(cause if isinstance(cause, Exception) else error, given, longest)


def of_vllm(error: Exception, given: Mapping[str, Any], longest: int | None = None) -> Refused:
    """Return what the client hears of what vLLM said of a request, or stumbled over, before the engine's first token.

    Nothing but the request's content can be at fault.
    """
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    told = create_error_response(error).error
    if told.code >= 500:
        log.warning("request refused: %s: %s", type(error).__name__, one_line(str(error)))
        return Refused(400, f"the request cannot be processed: {one_line(str(error) or type(error).__name__)}")
    return of_response(told.code, told.message, told.param, given, longest)


def of_response(status: int, message: str, param: str | None, given: Mapping[str, Any], longest: int | None) -> Refused:
    """Return a refusal of vLLM's in this service's words, at the client's own name of the field."""
    text = one_line(message)
    if text == NONE_LEFT and not any(given.get(name) == 0 for name in ("max_tokens", *NAMES["max_tokens"])):
        param, text = (
            "input_tokens",
            f"This model's maximum context length is {longest} tokens, and the prompt leaves none for an answer",
        )
    if param is None and (word := re.match(r"\w+", text)) is not None and (word[0] in given or word[0] in NAMES):
        param = word[0]
    where = place(param, given)
    if param == "max_tokens" and where not in (None, "max_tokens"):
        text = text.replace("max_tokens", str(where), 1)
    return Refused(status, text, param=where)


def place(param: str | None, given: Mapping[str, Any]) -> str | None:
    """Return the client's name of a field that vLLM names so."""
    if param in given:
        return param
    return next((name for name in NAMES.get(param or "", ()) if name in given), param)


def one_line(text: str) -> str:
    """Return an error of vLLM's in one line, without its insides, and with keys of this service's configuration for its flags."""
    from vllm.entrypoints.serve.exception_handling.utils import sanitize_message

    text = OF_A_COMMAND_LINE.sub(
        lambda found: f"engine.extra.{found[1].replace('-', '_')} in the configuration", OF_ITS_INSIDES.sub("", text)
    )
    text = " ".join(sanitize_message(text).split())
    return "an internal detail" if OF_A_MACHINE.search(text) else text[:MOST_CHARACTERS]
