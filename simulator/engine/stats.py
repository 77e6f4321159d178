"""What a simulated engine counts, in the way the live one does. Pure.

Two-element lists are indexed by ``is_fp8``: this is the innermost code of the simulator, and hashing an enum costs more
than the rest of it.
"""

from nestedfp.modes import Mode

MODES = (Mode.FP16, Mode.FP8)  # by is_fp8
EWMA_WEIGHT = 0.2  # of step_ms


class StepTotals:
    """Totals since the engine started."""

    __slots__ = ("is_fp8", "step_ms", "steps", "steps_mixed", "switches", "tokens")

    def __init__(self) -> None:
        self.is_fp8: bool | None = None  # of the last step
        self.steps = [0, 0]
        self.steps_mixed = 0  # of rows of both precisions; in neither of the steps
        self.tokens = [0, 0]
        self.step_ms: list[float | None] = [None, None]  # EWMA
        self.switches = 0

    @property
    def last_mode(self) -> Mode:
        """Of the last step; FP16 before the first one."""
        return MODES[bool(self.is_fp8)]

    def scheduled(self, is_fp8: bool, tokens: int, steps: int = 1) -> None:
        """Count ``steps`` steps that begin, with ``tokens`` tokens together."""
        self.tokens[is_fp8] += tokens
        self.steps[is_fp8] += steps
        if is_fp8 is not self.is_fp8:
            self.switches += self.is_fp8 is not None
            self.is_fp8 = is_fp8

    def scheduled_rows(self, exact_rows: int, fast_rows: int) -> None:
        """Count a step that begins, with so many rows in FP16 and in FP8."""
        self.scheduled(fast_rows > 0, fast_rows or exact_rows)
        if exact_rows and fast_rows:
            self.tokens[False] += exact_rows
            self.steps[True] -= 1
            self.steps_mixed += 1

    def rows_took(self, exact_rows: int, fast_rows: int, duration_s: float) -> None:
        """Take a step's time, unless it held both."""
        if not exact_rows or not fast_rows:
            self.took(fast_rows > 0, duration_s)

    def took(self, is_fp8: bool, duration_s: float, steps: int = 1) -> None:
        """Take ``steps`` equal steps into the EWMA ``step_ms``; one counts as at most twice the value so far."""
        duration_ms = duration_s * 1e3
        value_ms = self.step_ms[is_fp8]
        if value_ms is None:
            value_ms = duration_ms
        while steps and duration_ms > 2 * value_ms:
            value_ms += EWMA_WEIGHT * value_ms
            steps -= 1
        self.step_ms[is_fp8] = duration_ms + (1 - EWMA_WEIGHT) ** steps * (value_ms - duration_ms)
