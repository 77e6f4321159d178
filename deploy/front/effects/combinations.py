"""Refuses what vLLM would take and silently answer otherwise than asked. Pure; the request is one of vLLM's classes.

What merely has no effect is answered, and named in a header (ignored.py).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from deploy.front.checks.bounds import check_bounds
from deploy.front.replies import Refused

MOST_BIAS = 100.0  # vLLM cuts a bias to this
# A search makes requests of its own, of a token each, from hardly more than the prompt and its width.
NOT_IN_A_SEARCH = (
    "stop",
    "stop_token_ids",
    "min_tokens",
    "bad_words",
    "logit_bias",
    "allowed_token_ids",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "repetition_detection",
    "prompt_logprobs",
    "structured_outputs",
    "response_format",
    "tools",
)


def check_text(request: Any) -> None:
    """Check a request for text: its bounds, and its combinations.

    Raises:
        Refused: 400; of a combination with the two fields of which one would be passed over, or the value that would be another.
    """
    check_bounds(request)
    for name, other in _conflicts(request):
        raise Refused(400, f"{name} cannot be kept together with {other}: leave one of the two out", param=name)
    for token, bias in (getattr(request, "logit_bias", None) or {}).items():
        if not abs(bias) <= MOST_BIAS:
            message = f"logit_bias: expected biases between {-MOST_BIAS:g} and {MOST_BIAS:g}, got {bias:g}"
            raise Refused(400, message, param=f"logit_bias.{token}")


def _conflicts(request: Any) -> Iterator[tuple[str, str]]:
    """Yield pairs of fields of which vLLM keeps one; the first is the one that it passes over."""
    fields = vars(request)  # not getattr: it warns of a deprecated field at every request
    form = fields.get("response_format")
    forced = fields.get("tools") and fields.get("tool_choice") not in (None, "none", "auto")
    constraints = [
        *(["structured_outputs"] if fields.get("structured_outputs") is not None else []),
        *(["response_format"] if form is not None and form.type != "text" else []),
        *(["tool_choice"] if forced else []),  # whose own grammar takes the place of others
    ]
    yield from pairwise(constraints)
    for constraint in constraints[:1]:  # at the end of a grammar the text ends, or would go on without it
        yield from ((name, constraint) for name in ("ignore_eos", "min_tokens") if fields.get(name))
    if fields.get("use_beam_search"):
        yield from ((name, "use_beam_search") for name in NOT_IN_A_SEARCH if _given(request, name))
        if fields["echo"] and fields["logprobs"] is not None:
            yield "echo", "use_beam_search"
    if fields.get("echo") and "prompt" in fields:  # of a completion: the prompt's text
        yield from (("echo", name) for name in ("return_token_ids", "truncate_prompt_tokens") if fields[name])
    if fields.get("stream") and fields.get("prompt_logprobs") is not None:
        yield "prompt_logprobs", "stream"


def _given(request: Any, name: str) -> bool:
    field = type(request).model_fields.get(name)
    return field is not None and vars(request)[name] not in (None, [], {}, field.get_default(call_default_factory=True))
