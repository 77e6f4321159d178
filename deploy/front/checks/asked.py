"""What a request asks of the engine, before anything is tokenized. Pure.

Texts count as a token for every four characters, which is near enough to refuse by; once they are tokenized, the request is counted
as what it is (``deploy.access.admission.Place.settle``).
"""

from typing import Any

from deploy.access.admission import Asked

CHARACTERS_PER_TOKEN = 4


def asked_of(request: Any) -> Asked:
    """Return what a completion or chat request of vLLM's asks for."""
    samples = max(1, request.n or 1)
    fields = vars(request)  # not getattr: it warns of a deprecated field at every request
    output = fields.get("max_completion_tokens")
    output = fields.get("max_tokens") if output is None else output
    output = None if output is None else max(0, output)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return Asked(len(prompt), samples, sum(map(_tokens, prompt)), output)
    if prompt is not None:
        return Asked(1, samples, _tokens(prompt), output)
    return Asked(1, samples, sum(map(_tokens_of_message, fields.get("messages") or ())), output)


def asked_of_input(request: Any) -> Asked:
    """Return what a request for a response asks for: a text, or items, of which messages have contents."""
    given = [{"content": request.input}] if isinstance(request.input, str) else request.input
    items = [each if isinstance(each, dict) else each.model_dump() for each in given]
    tokens = _tokens(request.instructions or "") + sum(map(_tokens_of_message, items))
    output = request.max_output_tokens
    return Asked(1, 1, tokens, None if output is None else max(0, output))


def _tokens(prompt: Any) -> int:
    """A text, or token ids."""
    return len(prompt) // CHARACTERS_PER_TOKEN if isinstance(prompt, str) else len(prompt)


def _tokens_of_message(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return _tokens(content)
    if not isinstance(content, list):
        return 0
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return sum(_tokens(text) for text in texts if isinstance(text, str))
