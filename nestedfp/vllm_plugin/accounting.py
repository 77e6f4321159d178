"""Tokens computed in each precision. Pure: no vLLM, no clock.

A prompt token belongs to the precision of the step that computed its KV entry, a completion token to the precision of
the step that sampled it. Prompt tokens that no step of the request computed came from the prefix cache.
"""

from dataclasses import dataclass, field

from nestedfp.modes import Mode

COUNTS_KEY = "nestedfp"  # under which the counters travel
# Order of the four counters as they travel from the engine to the front end.
PROMPT_FP16, PROMPT_FP8, COMPLETION_FP16, COMPLETION_FP8 = range(4)


class RequestTokens:
    """Counters of one request."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0, 0, 0, 0]

    def computed(self, mode: Mode, start: int, count: int, prompt_tokens: int) -> None:
        """Count a step that computes the positions ``[start, start + count)`` of a request."""
        in_prompt = min(start + count, prompt_tokens) - start
        if in_prompt > 0:
            self.counts[PROMPT_FP16 if mode is Mode.FP16 else PROMPT_FP8] += in_prompt

    def sampled(self, mode: Mode, count: int) -> None:
        """Count ``count`` completion tokens sampled by one step."""
        self.counts[COMPLETION_FP16 if mode is Mode.FP16 else COMPLETION_FP8] += count

    def preempted(self) -> None:
        """The request lost its KV entries: its prompt will be computed, or read from the cache, anew."""
        self.counts[PROMPT_FP16] = self.counts[PROMPT_FP8] = 0


@dataclass
class EngineTotals:
    """Totals of one engine since it started."""

    tokens: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    steps: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    step_ms: dict[Mode, float | None] = field(default_factory=lambda: dict.fromkeys(Mode, None))
    switches: int = 0
    last_mode: Mode | None = None

    def step(self, mode: Mode, scheduled_tokens: int) -> None:
        """Count one non-empty step."""
        self.tokens[mode] += scheduled_tokens
        self.steps[mode] += 1
        self.switches += self.last_mode is not None and self.last_mode is not mode
        self.last_mode = mode

    def took(self, mode: Mode, duration_ms: float, weight: float = 0.2) -> None:
        """Smooth the duration of a step exponentially into ``step_ms``.

        One step counts as at most twice the present value: a single stall of the machine says nothing about the load,
        while steps that stay slow still double the value every four steps.
        """
        before = self.step_ms[mode]
        if before is None:
            self.step_ms[mode] = duration_ms
        else:
            self.step_ms[mode] = before + weight * (min(duration_ms, 2 * before) - before)

    def forget_durations(self) -> None:
        """Drop the smoothed durations: after a warm-up, whose first steps are many times slower than any later one."""
        self.step_ms = dict.fromkeys(Mode, None)


def usage_of(counts: list[int], prompt_tokens: int) -> dict[str, dict[str, int]]:
    """Return the ``usage.precision_tokens`` object of a response from a request's four counters."""
    return {
        "prompt": {
            "fp16": counts[PROMPT_FP16],
            "fp8": counts[PROMPT_FP8],
            "cached": prompt_tokens - counts[PROMPT_FP16] - counts[PROMPT_FP8],
        },
        "completion": {"fp16": counts[COMPLETION_FP16], "fp8": counts[COMPLETION_FP8]},
    }
