"""Prompts as token ids: seeded, of exact length, with common prefixes where the trace has them and nowhere else. Pure.

Token ids and not text, so that the prompt has exactly the trace's length whatever the tokenizer. Any other prefix sharing would
let the prefix cache skip work that the trace's requests had to do, and the second run of the same arrivals would find
the first run's prompts in the cache, hence ``run`` is part of the prompt.
"""

import json
from collections.abc import Sequence

import numpy as np

TOKEN_IDS = (10, 250)  # drawn from this half-open range: past the usual special tokens, inside every vocabulary


def prompt_token_ids(
    seed: int,
    run: int,
    index: int,
    length: int,
    blocks: Sequence[int] = (),
    block_tokens: int = 0,
) -> list[int]:
    """The prompt of request ``index`` of run ``run``.

    It begins with the whole ``blocks`` that fit; behind them distinct (run, index) differ within six tokens.
    """
    low, high = TOKEN_IDS
    base = high - low
    shared: list[int] = []
    for block in blocks[: length // block_tokens] if block_tokens else ():
        shared += np.random.default_rng([0xB10C, seed, run, block]).integers(low, high, block_tokens).tolist()
    number = [low + index // base**place % base for place in range(4)] + [
        low + run // base**place % base for place in (0, 1)
    ]
    tail: list[int] = (
        np.random.default_rng([0x9307, seed, run, index]).integers(low, high, max(length - len(number), 0)).tolist()
    )
    return (shared + number + tail)[:length]


def completion_body(model: str, prompt: list[int] | str, output_tokens: int, precision: str | None = None) -> bytes:
    """Body of the streaming request. Greedy, and exactly ``output_tokens`` long."""
    return json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if precision is None else {"precision": precision}),
        },
        separators=(",", ":"),
    ).encode()
