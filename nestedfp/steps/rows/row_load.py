"""Whether an engine is so loaded that exact rows would make others late. Pure; standard library only.

The rule of rows plans the line that is there. It does not see that more comes. Near the most that fast steps compute, a few exact
answers lengthen all steps, more requests run at once, and the next burst finds no slack. Far beyond the most that exact steps
compute, which is little where the weights alone take most of a step, no answer stays exact to its end and each lengthens all
steps until it is fast. An engine whose places or KV cache run out takes nobody new, and it is too late to be fast then. So beyond
a share of any of these, all answers are fast until the load is clearly below all of them.
"""

from math import exp

from nestedfp.modes import Mode
from nestedfp.steps.step_times import StepTimes

LOAD_S = 3.0  # over which rows are counted: shorter than a burst, longer than a prompt
# Of the rows that full steps, or shorter ones of the TPOT deadline, compute in a precision: with more the engine is overloaded,
# until there are fewer than the second share. Chosen in the simulator: FP8's on four windows of one trace, 8B and 24B, FP16's on
# five, 70B on two GPUs.
OVERLOAD_SHARES = {Mode.FP8: (0.65, 0.55), Mode.FP16: (2.0, 1.2)}
# FP8's where steps have one precision, so that those with exact rows compute nobody's faster: chosen on one window, 24B.
WHOLE_STEPS_SHARES = (0.5, 0.4)
FULL = (1.0, 0.85)  # the same of ``RowState.fullness``


class RowLoad:
    """The rows of the last seconds."""

    def __init__(self) -> None:
        self._rows_per_s = 0.0
        self._at_s: float | None = None
        self._is_over = False

    def is_over(self, now_s: float, times: StepTimes, step_s: float, budget_tokens: int, fullness: float) -> bool:
        """Say whether the engine is overloaded.

        Args:
            now_s: of one clock.
            times: what steps take.
            step_s: the TPOT deadline.
            budget_tokens: the most tokens of a step.
            fullness: ``RowState.fullness``.
        """
        if self._at_s is not None:
            self._rows_per_s *= exp(min(0.0, self._at_s - now_s) / LOAD_S)
        self._at_s = now_s

        def is_beyond(mode: Mode) -> bool:
            shares = WHOLE_STEPS_SHARES if mode is Mode.FP8 and not times.are_by_row else OVERLOAD_SHARES[mode]
            most_per_s = self._rows_per_s / shares[self._is_over]
            rows, limit_s = int(most_per_s * step_s), step_s
            if rows > budget_tokens:
                rows, limit_s = budget_tokens, budget_tokens / most_per_s
            return rows > 0 and times.predicted_s(mode, rows, with_prompts=True) > limit_s

        is_full = fullness > FULL[self._is_over]
        self._is_over = is_full or (times.are_measured and any(is_beyond(mode) for mode in OVERLOAD_SHARES))
        return self._is_over

    def computes(self, rows: int) -> None:
        """The step that begins has so many rows."""
        self._rows_per_s += rows / LOAD_S
