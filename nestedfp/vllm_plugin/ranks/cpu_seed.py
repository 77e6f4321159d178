"""Seeded requests with chunked prompts on a CPU.

vLLM samples in every step of a request, also in those that end inside its prompt, and throws those samples away. It takes
back what they drew from the request's generator by ``set_offset``, which a CPU's generator does not have, so that one such
request ended the engine ("CPU Generator does not use offset"). Here those samples are drawn without the request's generator, and
the tokens are those of the same request with its prompt in one piece.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def kept(runner: Any) -> Iterator[None]:
    """Keep the generators of requests whose sample of this step is thrown away out of the sight of a CPU's model runner."""
    generators, mask = runner.input_batch.generators, runner.discard_request_mask.np
    hidden = {index: generators.pop(index) for index in list(generators) if mask[index]}
    try:
        yield
    finally:
        generators.update(hidden)
