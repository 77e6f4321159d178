"""The text of an answer to a prompt that ends inside a character, or in U+FFFD, by which decoders tell that.

tokenizers' ``DecodeStream`` takes no prompt for read whose text ends so, and the first whole character of the answer then brings
the prompt with it. Here the stream reads the prompt's last tokens one by one, and of the first text it gives, the part that the
prompt had already is cut off: a character that the prompt began and the answer completes belongs to the answer.
"""

import functools
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

UNFINISHED = "\ufffd"
LAST_TOKENS = 32  # that a decoder is shown, of which some may have no text


class AnswerStream:
    """Stands where tokenizers' ``DecodeStream`` stands, and gives only the text that comes after ``rest``."""

    def __init__(self, stream: Any, rest: str) -> None:
        self._stream, self._rest = stream, rest

    def step(self, tokenizer: Any, token: int) -> str | None:
        """Return the text that one more token makes whole; None: none."""
        text: str | None = self._stream.step(tokenizer, token)
        if self._rest and text:
            same = (old == new for old, new in zip(self._rest, text, strict=False))
            text = text[sum(takewhile(bool, same)) :]
            self._rest = ""
        return text


def stream_after(tokenizer: Any, prompt: Sequence[int], skip_special_tokens: bool) -> Any:
    """Return a stream of the answer to a prompt.

    Args:
        tokenizer: of the library ``tokenizers``.
        prompt: token ids.
    """
    from tokenizers.decoders import DecodeStream

    last = list(prompt[-LAST_TOKENS:])
    text = tokenizer.decode(last, skip_special_tokens=skip_special_tokens)
    if not text and len(prompt) > len(last):
        last = list(prompt)
        text = tokenizer.decode(last, skip_special_tokens=skip_special_tokens)
    if not text.endswith(UNFINISHED):
        return DecodeStream(ids=list(prompt), skip_special_tokens=skip_special_tokens)
    stream = DecodeStream(skip_special_tokens=skip_special_tokens)
    read = sum(len(stream.step(tokenizer, token) or "") for token in last)
    return AnswerStream(stream, text[read:])


def install() -> None:
    """Have vLLM's detokenizer begin answers so. Idempotent."""
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    original = FastIncrementalDetokenizer.__init__
    if getattr(original, "_nestedfp", False):
        return

    @functools.wraps(original)
    def begun(self: Any, tokenizer: Any, request: Any) -> None:
        original(self, tokenizer, request)
        if request.prompt_token_ids:
            self.stream = stream_after(self.tokenizer, request.prompt_token_ids, self.skip_special_tokens)

    begun._nestedfp = True  # type: ignore[attr-defined]
    FastIncrementalDetokenizer.__init__ = begun  # type: ignore[method-assign]
