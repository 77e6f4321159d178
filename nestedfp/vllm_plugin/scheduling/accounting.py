"""Tokens computed in each precision. Pure: no vLLM, no clock.

A prompt token belongs to the precision of the step that computed its KV entry, a completion token to the precision of
the step that sampled it. A prompt token that was read from the prefix cache counts as FP16 if it and all tokens before it were
computed by FP16 steps, else as FP8.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nestedfp.modes import Mode

COUNTS_KEY = "nestedfp"  # under which the counts travel


class TokenCounts(NamedTuple):
    """Tokens of one sequence, or of several added up, by the precision that computed them."""

    prompt_fp16: int = 0
    prompt_fp8: int = 0
    cached_fp16: int = 0  # prompt tokens read from the prefix cache
    cached_fp8: int = 0
    completion_fp16: int = 0
    completion_fp8: int = 0
    kv_fp8: int = 0  # sequences whose KV entries are FP8, in steps of either precision


class RequestTokens:
    """Counters of one sequence in the engine.

    Completion tokens are counted where they are few: those of FP8 steps. All others are FP16.
    """

    __slots__ = ("cached_fp8", "cached_fp16", "completion_fp8", "prompt_fp8", "prompt_fp16")

    def __init__(self) -> None:
        self.prompt_fp16 = self.prompt_fp8 = self.cached_fp16 = self.cached_fp8 = self.completion_fp8 = 0

    def computed(self, mode: Mode, start: int, count: int, prompt_tokens: int) -> None:
        """Count a step that computes the positions ``[start, start + count)`` of a request."""
        in_prompt = min(start + count, prompt_tokens) - start
        if in_prompt > 0:
            if mode is Mode.FP16:
                self.prompt_fp16 += in_prompt
            else:
                self.prompt_fp8 += in_prompt

    def begins(self, cached: int, exact: int, prompt_tokens: int) -> None:
        """Count a request's first step, or its first one after a preemption: only now its earlier KV entries count no more.

        A preempted request may still end: by the output of a step that was in flight, and computed with those entries.
        ``cached`` positions come from the prefix cache, ``exact`` of them in exact FP16.
        """
        self.prompt_fp16 = self.prompt_fp8 = 0
        self.cached_fp16 = min(exact, prompt_tokens)
        self.cached_fp8 = min(cached, prompt_tokens) - self.cached_fp16

    def counts(self, completion_tokens: int, *, rounds_kv: bool = False) -> TokenCounts:
        """Return the counts so far of a sequence that has sampled ``completion_tokens`` tokens."""
        fp16 = completion_tokens - self.completion_fp8
        return TokenCounts(
            self.prompt_fp16,
            self.prompt_fp8,
            self.cached_fp16,
            self.cached_fp8,
            fp16,
            self.completion_fp8,
            int(rounds_kv),
        )


@dataclass
class EngineTotals:
    """Totals of one engine since it started."""

    tokens: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    steps: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    steps_mixed: int = 0  # of rows of both precisions; in neither of the steps
    step_ms: dict[Mode, float | None] = field(default_factory=lambda: dict.fromkeys(Mode, None))
    seconds: dict[Mode, float] = field(default_factory=lambda: dict.fromkeys(Mode, 0.0))  # that steps have taken
    fp8_reasons: Counter[str] = field(default_factory=Counter)  # FP8 steps by what asked for them
    drafted: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))  # draft tokens that were verified
    accepted: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    switches: int = 0
    last_mode: Mode | None = None

    def step(self, fp16_rows: int, fp8_rows: int, reason: str) -> None:
        """Count one step with rows in either precision or both; ``reason`` is that of step_rule.py or row_rule.py."""
        mode = Mode.FP8 if fp8_rows else Mode.FP16
        self.tokens[Mode.FP16] += fp16_rows
        self.tokens[Mode.FP8] += fp8_rows
        if fp16_rows and fp8_rows:
            self.steps_mixed += 1
        else:
            self.steps[mode] += 1
        if mode is Mode.FP8:
            self.fp8_reasons[reason] += 1
        self.switches += self.last_mode is not None and self.last_mode is not mode
        self.last_mode = mode

    def verified(self, mode: Mode, drafts: int, accepted: int) -> None:
        """Count a request's draft tokens that rows of a precision have verified, and those that were accepted."""
        self.drafted[mode] += drafts
        self.accepted[mode] += accepted

    def drafts(self) -> dict[str, int]:
        """Return draft tokens that were verified and accepted, by the precision of the rows that verified them."""
        counts = {"drafted": self.drafted, "accepted": self.accepted}
        return {f"{name}_{mode.value}": count[mode] for name, count in counts.items() for mode in Mode}

    def took(self, mode: Mode, duration_ms: float, weight: float = 0.2) -> None:
        """Add the duration of a step to ``seconds``, and smooth it exponentially into ``step_ms``.

        One step counts as at most twice the present value: a single stall of the machine says nothing about the load,
        while steps that stay slow still double the value every four steps.
        """
        self.seconds[mode] += duration_ms / 1e3
        before = self.step_ms[mode]
        if before is None:
            self.step_ms[mode] = duration_ms
        else:
            self.step_ms[mode] = before + weight * (min(duration_ms, 2 * before) - before)

    def forget_durations(self) -> None:
        """Drop the smoothed durations: after a warm-up, whose first steps are many times slower than any later one."""
        self.step_ms = dict.fromkeys(Mode, None)


def total(counts: Iterable[TokenCounts]) -> TokenCounts:
    """Add up the counts of several sequences."""
    return TokenCounts(*map(sum, zip(*counts, strict=True)))


def usage_of(counts: TokenCounts) -> dict[str, Any]:
    """Return the ``usage.precision_tokens`` object of a response."""
    cached = {"fp16": counts.cached_fp16, "fp8": counts.cached_fp8}
    return {
        "prompt": {"fp16": counts.prompt_fp16, "fp8": counts.prompt_fp8, "cached": cached},
        "completion": {"fp16": counts.completion_fp16, "fp8": counts.completion_fp8},
        **({"kv_cache": "fp8"} if counts.kv_fp8 else {}),
    }
