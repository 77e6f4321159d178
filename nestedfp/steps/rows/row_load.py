"""Whether an engine is so loaded that exact rows would make others late. Pure; standard library only.

The rule of rows plans the line that is there. It does not see that more comes: near the most that fast steps compute, a few exact
answers lengthen all steps, more requests run at once, and the next burst finds no slack. So beyond a share of that most, all
answers are fast until the load is clearly below it.
"""

from math import exp

from nestedfp.modes import Mode
from nestedfp.steps.step_times import StepTimes

LOAD_S = 3.0  # over which rows are counted: shorter than a burst, longer than a prompt
# Of the rows that fast steps of the TPOT deadline compute: with more the engine is overloaded, until there are fewer than the
# second share. The rest is for what comes at once. Chosen in the simulator, on four windows of one trace, 8B and 24B.
OVERLOAD_SHARES = (0.65, 0.55)


class RowLoad:
    """The rows of the last seconds."""

    def __init__(self) -> None:
        self._rows_per_s = 0.0
        self._at_s: float | None = None
        self._is_over = False

    def is_over(self, now_s: float, times: StepTimes, step_s: float, budget_tokens: int) -> bool:
        """Say whether the engine is overloaded.

        Args:
            now_s: of one clock.
            times: what steps take.
            step_s: the TPOT deadline.
            budget_tokens: the most tokens of a step.
        """
        if self._at_s is not None:
            self._rows_per_s *= exp(min(0.0, self._at_s - now_s) / LOAD_S)
        self._at_s = now_s
        most = int(self._rows_per_s * step_s / OVERLOAD_SHARES[self._is_over])
        too_long = most > 0 and times.predicted_s(Mode.FP8, most, with_prompts=True) > step_s
        self._is_over = times.are_measured and (most > budget_tokens or too_long)
        return self._is_over

    def computes(self, rows: int) -> None:
        """The step that begins has so many rows."""
        self._rows_per_s += rows / LOAD_S
