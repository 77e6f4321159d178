"""Names what in a request has no effect: a typing error in an optional field would pass unnoticed. Pure."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from deploy.front.checks.requests import DEADLINE_HEADER, DEADLINE_KEY, PRIORITY_HEADER
from deploy.haproxy.haproxy_config import ATTEMPT_HEADER, SESSION_HEADER
from nestedfp.vllm_plugin.scheduling.pin import PIN_HEADER, PIN_KEY

OUR_HEADERS = b"x-nestedfp-"
KNOWN_HEADERS = frozenset({PIN_HEADER, DEADLINE_HEADER, ATTEMPT_HEADER, SESSION_HEADER})
KNOWN_XARGS = frozenset({PIN_KEY, DEADLINE_KEY})
# Of vLLM's classes, that nothing here reads.
UNREAD = (
    "user",
    "session_id",
    "kv_transfer_params",
    "ec_transfer_params",
    "return_token_offsets",
    "return_assistant_tokens_mask",
    "routed_experts_prompt_start",
    "service_tier",
    "max_tool_calls",
)
INCLUDED = "message.output_text.logprobs"  # what vLLM can include in a response
# That do something only together with the other.
ONLY_WITH = {
    "length_penalty": "use_beam_search",
    "truncation_side": "truncate_prompt_tokens",
    "stream_interval": "stream",
    "return_tokens_as_token_ids": "logprobs",
    "parallel_tool_calls": "tools",
}


def ignored(request: Any, body: bytes, headers: dict[bytes, bytes]) -> list[str]:
    """Return the paths of the fields in the body, and the headers of this service's, that have no effect on the answer."""
    fields = vars(request)
    found = {*_extras(request), *(name for name in UNREAD if _given(request, name))}
    found |= {
        name
        for name, other in ONLY_WITH.items()
        if _given(request, name) and (fields.get(other) is None or fields[other] is False)
    }
    found |= {f"vllm_xargs.{name}" for name in set(getattr(request, "vllm_xargs", None) or ()) - KNOWN_XARGS}
    if fields.get("structured_outputs") is not None:  # a class of another kind, which keeps nothing beside
        kept = set(vars(fields["structured_outputs"]))
        given = from_json(body)["structured_outputs"]
        found |= {f"structured_outputs.{name}" for name in given if name not in kept or name.startswith("_")}
    if fields.get("use_beam_search") and fields.get("temperature"):  # the beams' scores are those before it
        found.add("temperature")
    if fields.get("seed") == -1:  # vLLM's word for none
        found.add("seed")
    if fields.get("max_completion_tokens") is not None and fields.get("max_tokens") is not None:
        found.add("max_tokens")
    found |= {f"include.{number}" for number, name in enumerate(fields.get("include") or ()) if name != INCLUDED}
    if "include" in fields and _given(request, "top_logprobs") and INCLUDED not in (fields["include"] or ()):
        found.add("top_logprobs")
    if "stop_sequences" in fields and fields["metadata"]:  # in a response it comes back
        found.add("metadata")
    if "store" in request.model_fields_set and fields.get("store"):
        found.add("store")
    options = fields.get("stream_options")
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        found.add("stream_options.continuous_usage_stats")
    if "input" not in fields and _given(request, "request_id") and b"x-request-id" in headers:
        found.add("request_id")
    if PRIORITY_HEADER.encode() in headers and _given(request, "priority"):
        found.add("priority")
    found -= {"vllm_xargs", PIN_KEY}
    unknown = {name.decode("latin-1") for name in headers if name.startswith(OUR_HEADERS)} - KNOWN_HEADERS
    return [*sorted(found), *sorted(unknown)]


def _given(request: Any, name: str) -> bool:
    if name not in request.model_fields_set or (field := type(request).model_fields.get(name)) is None:
        return False
    return bool(vars(request)[name] not in (None, field.default))


def _extras(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that a model's class does not have, in it and in the models that it holds."""
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        for number, each in enumerate(value):
            yield from _extras(each, f"{path}{number}.")
    elif isinstance(value, BaseModel):
        yield from (path + name for name in value.model_extra or ())
        for name in value.model_fields_set:
            if isinstance(held := vars(value).get(name), BaseModel | list):
                yield from _extras(held, f"{path}{name}.")
