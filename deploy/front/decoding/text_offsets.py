"""Where in the text of a completion each token begins: ``logprobs.text_offset``.

vLLM adds up the lengths of its tokens' names, which are not those of their texts: a special token has a name and no text, half a
character the name of a whole one, and a token may be called by its number. Here the tokens are decoded one after the other, as the
text was.
"""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from deploy.front.decoding.prompt_end import stream_after

PREFIX = "data: "


class TextOffsets:
    """The offsets of one sequence, in order.

    Args:
        tokenizer: of the library ``tokenizers``.
        prompt: token ids.
        echoed: the prompt's text, if it stands before the answer's.
        skip_special_tokens: as the request says it.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], echoed: str | None, skip_special_tokens: bool) -> None:
        self._tokenizer, self._prompt, self._echoed = tokenizer, list(prompt), echoed
        self._stream = stream_after(tokenizer, prompt, skip_special_tokens)
        self._read = len(echoed or "")

    def next(self, count: int, token_ids: Sequence[int]) -> list[int]:
        """Return those of the next tokens.

        Args:
            count: of tokens, those of an echoed prompt included.
            token_ids: of the answer, at least as many as are among them.
        """
        found: list[int] = []
        if self._echoed is not None:
            found = self._of_prompt(self._echoed)
            self._echoed = None
        for token in token_ids[: max(0, count - len(found))]:
            found.append(self._read)
            self._read += len(self._stream.step(self._tokenizer, token) or "")
        return found

    def _of_prompt(self, echoed: str) -> list[int]:
        from tokenizers.decoders import DecodeStream

        # A prompt of text is echoed as it came, without the special tokens that were added to it.
        skip = self._tokenizer.decode(self._prompt, skip_special_tokens=False) != echoed
        stream = DecodeStream(skip_special_tokens=skip)
        found, read = [], 0
        for token in self._prompt:
            found.append(min(read, len(echoed)))
            read += len(stream.step(self._tokenizer, token) or "")
        return found


class StreamOffsets:
    """Corrects a stream of vLLM's: the offsets, and the prompt's log-probabilities, which it loses where n sequences echo it.

    Args:
        tokenizer: as of ``TextOffsets``; None: the offsets stay vLLM's.
        request: a ``CompletionRequest`` with ``logprobs``.
        prompts: the texts of its prompts; None where one has none.
    """

    def __init__(self, tokenizer: Any, request: Any, prompts: Sequence[str | None]) -> None:
        self._tokenizer, self._request, self._prompts = tokenizer, request, prompts
        self._offsets: dict[int, TextOffsets] = {}  # by the index of the choice
        self._token_ids: dict[int, list[int]] = defaultdict(list)  # of which no event has come
        self._logprobs: dict[int, Any] = {}  # of the prompts

    async def watch(self, results: AsyncIterator[tuple[int, Any]]) -> AsyncIterator[tuple[int, Any]]:
        """Yield the engine's outputs, which vLLM makes events of."""
        async for prompt, result in results:
            if result.prompt_logprobs:  # with one of a sequence's outputs, which may have been merged into another's
                self._logprobs[prompt] = result.prompt_logprobs
            result.prompt_logprobs = self._logprobs.get(prompt)
            for output in result.outputs:
                index = output.index + prompt * (self._request.n or 1)
                self._token_ids[index] += output.token_ids
                if index not in self._offsets and self._tokenizer is not None:
                    echoed = (result.prompt or self._prompts[prompt] or "") if self._request.echo else None
                    self._offsets[index] = TextOffsets(
                        self._tokenizer, result.prompt_token_ids, echoed, self._request.skip_special_tokens
                    )
            yield prompt, result

    async def corrected(self, events: Any) -> AsyncIterator[str]:
        """Yield the events with their offsets."""
        async with aclosing(events):
            async for event in events:
                yield self._corrected(event) if '"logprobs":{' in event and self._offsets else event

    def _corrected(self, event: str) -> str:
        chunk = json.loads(event.removeprefix(PREFIX))
        for choice in chunk.get("choices", ()):
            index, found = choice["index"], choice["logprobs"]
            found["text_offset"] = self._offsets[index].next(len(found["tokens"]), self._token_ids[index])
            self._token_ids[index].clear()
        return f"{PREFIX}{json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
