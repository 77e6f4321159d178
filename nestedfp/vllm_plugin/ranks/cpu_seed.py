"""Seeded requests with chunked prompts on a CPU.

vLLM samples in every step of a request, also in those that end inside its prompt, and throws those samples away. It takes
back what they drew from the request's generator by ``set_offset``, which a CPU's generator does not have, so that one such
request ended the engine ("CPU Generator does not use offset"). Here the state of the generator is put back instead, and the
tokens are those of the same request with its prompt in one piece.
"""

import functools
from typing import Any


def install() -> None:
    """Wrap the CPU's model runner. Idempotent."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if getattr(CPUModelRunner._sample, "_nestedfp", False):
        return
    sample, bookkeep = CPUModelRunner._sample, CPUModelRunner._bookkeeping_sync

    @functools.wraps(sample)
    def drawn_for_nothing_is_put_back(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = {generator: generator.get_state() for generator in _discarded(self).values()}
        result = sample(self, *args, **kwargs)
        for generator, state in before.items():
            generator.set_state(state)
        return result

    @functools.wraps(bookkeep)
    def without_offsets(self: Any, *args: Any, **kwargs: Any) -> Any:
        hidden = _discarded(self)
        for index in hidden:
            del self.input_batch.generators[index]
        try:
            return bookkeep(self, *args, **kwargs)
        finally:
            self.input_batch.generators.update(hidden)

    drawn_for_nothing_is_put_back._nestedfp = True  # type: ignore[attr-defined]
    CPUModelRunner._sample = drawn_for_nothing_is_put_back
    CPUModelRunner._bookkeeping_sync = without_offsets


def _discarded(runner: Any) -> dict[int, Any]:
    """Return the generators, by row of the batch, of requests whose sample of this step is thrown away."""
    mask = runner.discard_request_mask.np
    return {index: generator for index, generator in runner.input_batch.generators.items() if mask[index]}
