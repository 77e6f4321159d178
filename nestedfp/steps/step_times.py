"""What a step will take: its measured cost, and what steps of its kind have taken beyond theirs lately.

Pure and standard library only, as all of this folder, so that the engine's scheduler and the simulator run the same code.
"""

from math import inf

from nestedfp.modes import Mode
from nestedfp.steps.step_costs import StepCosts

LEAST_CHUNK_TOKENS = 32  # of prompts in a step that is capped by its time
LEAST_GAIN = 0.02  # of a step with two classes, over one that is all FP16
MOST_KEPT = 100_000  # costs of steps of two classes
MOST_GAIN = 2.0  # an FP16 step over an FP8 step, which reads half of the bytes
FORGET_WEIGHT = 0.01  # of a step of one precision in what mixed steps take beyond their cost
EXCESS_WEIGHT = 0.2  # of the newest step in what steps take beyond their measured cost
MOST_RISE = 2.0  # times the cost, by which a step may exceed the excess of before: the rest is a stall


class StepTimes:
    """Predicts what a step takes: its measured cost, and what steps of its kind have taken beyond theirs lately.

    The measured cost is of linear layers and what surrounds them; attention over long contexts comes on top, and takes
    the same in both precisions, so that one correction serves both.

    Args:
        costs: measured at the engine's start. None: a step takes what the last ones of its precision took, whatever its size; the
            first FP8 step is expected to take no time, so that one is tried.
    """

    def __init__(self, costs: StepCosts | None) -> None:
        self._costs = costs
        # Of steps of decodes alone, and of those with parts of prompts; one pair for both precisions where costs are known.
        exact = [0.0, 0.0]
        self._excess_s = {Mode.FP16: exact, Mode.FP8: [0.0, 0.0] if costs is None else exact}
        self._mixed_excess_s: list[float | None] = [None, None]  # the same of steps of both classes; None: none yet
        self._costs_s: dict[int, tuple[float, float]] = {}  # by tokens
        self._mixed_costs_s: dict[tuple[int, int], float] = {}  # by exact and fast rows

    @property
    def are_measured(self) -> bool:
        """Whether the cost of a step is known by its size."""
        return self._costs is not None

    def predicted_s(self, mode: Mode, tokens: int, *, with_prompts: bool) -> float:
        """Return how long a step of so many tokens will take, in seconds."""
        return max(0.0, self._cost_s(mode, tokens) + self._excess_s[mode][with_prompts])

    @property
    def are_by_row(self) -> bool:
        """Whether the engine can compute exact and fast rows in one step."""
        return self._costs is not None and self._costs.mixed_ms(1, 1) is not None

    def of_rows_s(self, exact_rows: int, fast_rows: int, *, with_prompts: bool) -> float:
        """Return how long a step of so many exact and fast rows will take, in seconds; infinity where it cannot hold both."""
        if not fast_rows or not exact_rows:
            mode = Mode.FP8 if fast_rows else Mode.FP16
            return self.predicted_s(mode, exact_rows + fast_rows, with_prompts=with_prompts)
        excess_s = self._mixed_excess_s[with_prompts]
        excess_s = self._excess_s[Mode.FP16][with_prompts] if excess_s is None else excess_s
        return max(0.0, self._mixed_s(exact_rows, fast_rows) + excess_s)

    def classes_pay(self, exact_rows: int, fast_rows: int, *, with_prompts: bool) -> bool:
        """Whether a step that computes some of its rows in FP8 takes less than one that is all FP16."""
        if not exact_rows:
            return self._costs is None or self._costs.fp8_pays(fast_rows)
        if not fast_rows:
            return False
        whole_s = self.of_rows_s(exact_rows + fast_rows, 0, with_prompts=with_prompts)
        return self.of_rows_s(exact_rows, fast_rows, with_prompts=with_prompts) * (1 + LEAST_GAIN) < whole_s

    def rows_took(self, exact_rows: int, fast_rows: int, took_s: float, *, with_prompts: bool) -> None:
        """Learn how long a step of exact and fast rows has taken."""
        if not fast_rows or not exact_rows:
            self.took(Mode.FP8 if fast_rows else Mode.FP16, exact_rows + fast_rows, took_s, with_prompts=with_prompts)
            return
        excess_s = took_s - self._mixed_s(exact_rows, fast_rows)
        before_s = self._mixed_excess_s[with_prompts]
        before_s = self._excess_s[Mode.FP16][with_prompts] if before_s is None else before_s
        self._mixed_excess_s[with_prompts] = before_s + EXCESS_WEIGHT * (excess_s - before_s)

    def _mixed_s(self, exact_rows: int, fast_rows: int) -> float:
        key = exact_rows, fast_rows
        if (known_s := self._mixed_costs_s.get(key)) is None:
            mixed_ms = None if self._costs is None else self._costs.mixed_ms(exact_rows, fast_rows)
            if len(self._mixed_costs_s) >= MOST_KEPT:
                self._mixed_costs_s.clear()
            known_s = self._mixed_costs_s[key] = inf if mixed_ms is None else mixed_ms * 1e-3
        return known_s

    def prompt_tokens_within(self, mode: Mode, limit_s: float, decodes: int, budget_tokens: int) -> int:
        """Return the prompt tokens of the largest step with so many decodes that takes at most ``limit_s`` seconds.

        At least ``LEAST_CHUNK_TOKENS``, as far as the budget allows: else no prompt would ever be computed.
        """
        low, high = 0, max(0, budget_tokens - decodes)
        least = min(LEAST_CHUNK_TOKENS, high)
        while low < high:
            middle = (low + high + 1) // 2
            if self.predicted_s(mode, decodes + middle, with_prompts=True) <= limit_s:
                low = middle
            else:
                high = middle - 1
        return max(low, least)

    def took(self, mode: Mode, tokens: int, took_s: float, *, with_prompts: bool) -> None:
        """Learn how long a step has taken."""
        cost_s, excesses_s = self._cost_s(mode, tokens), self._excess_s[mode]
        excess_s = took_s - cost_s
        if self._costs is not None:
            excess_s = min(excess_s, excesses_s[with_prompts] + MOST_RISE * cost_s)
        excesses_s[with_prompts] += EXCESS_WEIGHT * (excess_s - excesses_s[with_prompts])
        if self._costs is None:
            if mode is Mode.FP8:  # a stall of FP16 is forgotten though no FP16 step follows it
                exact_s = self._excess_s[Mode.FP16]
                exact_s[with_prompts] = min(exact_s[with_prompts], MOST_GAIN * excesses_s[with_prompts])
        elif (mixed_s := self._mixed_excess_s[with_prompts]) is not None:  # and so is one of a mixed step
            self._mixed_excess_s[with_prompts] = mixed_s + FORGET_WEIGHT * (excesses_s[with_prompts] - mixed_s)

    def _cost_s(self, mode: Mode, tokens: int) -> float:
        if self._costs is None:
            return 0.0
        if (known_s := self._costs_s.get(tokens)) is None:
            fp16_ms, fp8_ms = self._costs.times_ms(tokens)
            known_s = self._costs_s[tokens] = fp16_ms * 1e-3, fp8_ms * 1e-3
        return known_s[mode is Mode.FP8]
