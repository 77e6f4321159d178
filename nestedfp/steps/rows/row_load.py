"""Whether an engine is so loaded that exact rows would make others late. Pure; standard library only.

The rule of rows plans the line that is there. It does not see that more comes. Near the most that fast steps compute, a few exact
answers lengthen all steps, more requests run at once, and the next burst finds no slack. Far beyond the most that exact steps
compute, which is little where the weights alone take most of a step, no answer stays exact to its end and each lengthens all
steps until it is fast. An engine whose places or KV cache run out takes nobody new, and it is too late to be fast then. So beyond
a share of any of these, all answers are fast until the load is clearly below all of them. For some seconds after prompts were late
the share is less.
"""

from math import exp, inf

from nestedfp.modes import Mode
from nestedfp.steps.rows.row_state import RowPlan, RowState
from nestedfp.steps.step_times import StepTimes

LOAD_S = 3.0  # over which rows are counted: shorter than a burst, longer than a prompt
# Of the rows that full steps, or shorter ones of the TPOT deadline, compute in a precision: with more the engine is overloaded,
# until there are fewer than the second share. Chosen in the simulator: FP8's on two windows of one trace, 8B and 24B, FP16's on
# five, 70B on two GPUs.
OVERLOAD_SHARES = {Mode.FP8: (0.7, 0.6), Mode.FP16: (2.0, 1.2)}
# Where steps have one precision, so that those with exact rows compute nobody's faster. Chosen in the simulator on step times of
# 8B, 24B and, fitted by hand to load tests, Qwen3-30B-A3B.
ONE_PRECISION_SHARES = {Mode.FP8: (0.63, 0.6), Mode.FP16: (1.15, 1.13)}
CAREFUL_SHARES = (0.5, 0.4)  # FP8's where more than LATE_SHARE of the last prompts came late; chosen as OVERLOAD_SHARES
LATE_S = 5.0
LATE_SHARE = 0.01
FULL = (1.0, 0.85)  # the same of ``RowState.fullness``


class RowLoad:
    """The rows of the last seconds."""

    def __init__(self) -> None:
        self._rows_per_s = self._pinned_rows_per_s = 0.0
        self._at_s: float | None = None
        self._ended = self._late = 0.0  # prompts, and those of them that were late
        self._is_over = False

    def is_over(self, state: RowState, times: StepTimes) -> bool:
        """Say whether the engine is overloaded.

        Args:
            state: of the engine.
            times: what steps take.
        """
        now_s, step_s, budget_tokens = state.now_s, state.step_s, state.budget_tokens
        if self._at_s is not None:
            passed_s = max(0.0, now_s - self._at_s)
            self._rows_per_s, self._pinned_rows_per_s = self.rows_per_s(now_s)
            self._ended *= exp(-passed_s / LATE_S)
            self._late *= exp(-passed_s / LATE_S)
        self._at_s = now_s
        # No longer than that, though the engine be over: to wait for the careful share costs 10 to 40 points of exact answers (8B).
        is_late = self._late > LATE_SHARE * self._ended
        shares = OVERLOAD_SHARES if times.are_by_row else ONE_PRECISION_SHARES
        if is_late:
            shares = {**shares, Mode.FP8: CAREFUL_SHARES}

        def is_beyond(mode: Mode) -> bool:
            most_per_s = self._rows_per_s / shares[mode][self._is_over]
            rows, limit_s = int(most_per_s * step_s), step_s
            if rows > budget_tokens:
                rows, limit_s = budget_tokens, budget_tokens / most_per_s
            return rows > 0 and times.predicted_s(mode, rows, with_prompts=True) > limit_s

        is_full = state.fullness > FULL[self._is_over]
        self._is_over = is_full or (times.are_measured and any(is_beyond(mode) for mode in shares))
        return self._is_over

    def computes(self, state: RowState, plan: RowPlan) -> None:
        """The step begins."""
        decodes = len(plan.exact) + len(plan.demoted) + len(state.fast)
        rows = state.decode_rows * decodes + sum([chunk.tokens for chunk in plan.chunks])
        self._rows_per_s += rows / LOAD_S
        pinned = state.decode_rows * sum([state.exact[i].is_pinned for i in plan.exact])
        pinned += sum([chunk.tokens for chunk in plan.chunks if state.line[chunk.prompt].is_pinned])
        self._pinned_rows_per_s += pinned / LOAD_S
        ended = [p for c in plan.chunks if c.tokens == (p := state.line[c.prompt]).left_tokens and p.due_s < inf]
        self._ended += len(ended)
        self._late += len([prompt for prompt in ended if prompt.due_s < state.now_s])

    def rows_per_s(self, now_s: float) -> tuple[float, float]:
        """Return how many rows were computed in a second, of all and of pinned requests."""
        left = 1.0 if self._at_s is None else exp(-max(0.0, now_s - self._at_s) / LOAD_S)
        return self._rows_per_s * left, self._pinned_rows_per_s * left
