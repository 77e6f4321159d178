"""The loads of the HTTP benchmark: prompts, request bodies, arrival times."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client.stream_client import LoadPlan
from loadtest.sender.prompts import completion_body

WORDS = "the old fox ran over a red hill and saw his friend in deep wood by"
BODIES = 512  # different prompts; prefix caching is off all the same
SEED = 20


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """One load. Closed loop with ``streams``, open loop with ``rate_per_s``.

    Attributes:
        warm_s: from the start to the window that is measured; a closed loop's streams begin spread over half of it, so that
            their answers do not end all at once.
        window_s: what is measured.
    """

    name: str
    prompt_tokens: int
    output_tokens: int
    warm_s: float
    window_s: float
    streams: int = 0
    rate_per_s: float = 0.0
    drain_s: float = 20.0  # what requests in flight may take after the window

    def plan(self, model_id: str, prompts: Sequence[str]) -> LoadPlan:
        """Return the client's load for a model."""
        bodies = [completion_body(model_id, prompt, self.output_tokens).decode() for prompt in prompts]
        load_s = self.warm_s + self.window_s
        return LoadPlan(
            bodies,
            streams=self.streams,
            due_s=[] if self.streams else arrivals(self.rate_per_s, load_s),
            start_for_s=load_s,
            ramp_s=self.warm_s / 2 if self.streams > 1 else 0.0,
            limit_s=load_s + self.drain_s,
        )


def arrivals(rate_per_s: float, duration_s: float, seed: int = SEED) -> list[float]:
    """Return the times of a Poisson process, the same for every system."""
    source = random.Random(seed)
    times: list[float] = []
    at_s = source.expovariate(rate_per_s)
    while at_s < duration_s:
        times.append(at_s)
        at_s += source.expovariate(rate_per_s)
    return times


def prompts(model_dir: Path, tokens: int, count: int = BODIES, seed: int = SEED) -> list[str]:
    """Return texts that a model's tokenizer turns into exactly so many tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    source, words = random.Random(seed), WORDS.split()
    found: list[str] = []
    for _ in range(100 * count):
        drawn = " ".join(source.choice(words) for _ in range(tokens))
        text = tokenizer.decode(tokenizer.encode(drawn).ids[:tokens])
        if len(tokenizer.encode(text).ids) == tokens:
            found.append(text)
        if len(found) == count:
            return found
    raise RuntimeError(f"no texts of {tokens} tokens found for {model_dir / 'tokenizer.json'}")
