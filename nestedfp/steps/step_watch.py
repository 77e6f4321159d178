"""What one engine goes by for its steps: their times, and its word of room.

Pure and standard library only: the engine's scheduler and the simulated engine each have one. Times are seconds of one clock.
"""

from nestedfp.modes import Mode
from nestedfp.steps.prompt_room import PromptRoom, RoomMargin
from nestedfp.steps.step_costs import StepCosts
from nestedfp.steps.step_rule import StepRule
from nestedfp.steps.step_times import StepTimes


class StepWatch:
    """Knows what steps take; asked how much an engine can take.

    Args:
        budget_tokens: the most tokens of a step.
        costs: measured at the engine's start; None: not measured yet.

    Attributes:
        times: what steps take.
        margin: what the engine keeps free where it says its room.
    """

    def __init__(self, budget_tokens: int, costs: StepCosts | None = None) -> None:
        self._budget_tokens = budget_tokens
        self.times = StepTimes(costs)
        self.margin = RoomMargin()

    def use(self, costs: StepCosts | None) -> None:
        """Go by these measured costs from now on."""
        self.times = StepTimes(costs)

    def exact_budget_tokens(self, rule: StepRule, decodes: int) -> int:
        """Return the most tokens of an FP16 step with so many decodes."""
        if rule.exact_step_s is None or not self.times.are_measured:
            return self._budget_tokens
        prompts = self.times.prompt_tokens_within(Mode.FP16, rule.exact_step_s, decodes, self._budget_tokens)
        return min(self._budget_tokens, decodes + prompts)

    def room(
        self,
        rule: StepRule,
        mode: Mode,
        now_s: float,
        *,
        decodes: int,
        line_tokens: int,
        ends_s: float,
        slack_s: float,
        rows_per_s: tuple[float, float],
    ) -> PromptRoom | None:
        """Return what the engine can take now; None: the rule does not ask.

        Args:
            rule: with the time of steps and first tokens.
            mode: that the engine is directed to; under ``auto`` FP8, which it runs where it must.
            now_s: the present.
            decodes: requests that get a token in every step.
            line_tokens: of prompts, still to be computed.
            ends_s: when the steps on their way end; a time that has passed where there are none.
            slack_s: until the first of the next tokens is due; infinity: nothing decodes.
            rows_per_s: that were computed lately, of all and of pinned requests.
        """
        if rule.room_ttft_s is None or rule.exact_step_s is None or not self.times.are_measured:
            return None
        ttft_s, step_s = self.margin.within(mode, rule.room_ttft_s), rule.exact_step_s
        chunk = self.times.prompt_tokens_within(mode, step_s, decodes, self._budget_tokens)
        took_s = self.times.predicted_s(mode, decodes + chunk, with_prompts=True)
        exact_per_s = max(1.0, self.capacity_tokens_per_s(rule, Mode.FP16) or 0.0)
        shares = [each / exact_per_s for each in rows_per_s]
        if chunk == 0 or took_s <= 0:
            room = PromptRoom(-line_tokens, 0, 0.0, *shares)
        else:
            per_s = chunk / took_s
            full = max(0, int(per_s * (ttft_s - took_s)))
            # One more prompt would have the decodes wait for too long a step.
            left = int(per_s * (ttft_s - took_s - max(0.0, ends_s - now_s))) if slack_s >= took_s else 0
            room = PromptRoom(left - line_tokens, full, per_s, *shares)
        self.margin.said(mode, rule.room_ttft_s, room)
        return room

    def capacity_tokens_per_s(self, rule: StepRule, mode: Mode) -> float | None:
        """Return what steps of ``exact_step_s`` compute in a second; None: the rule does not ask, or no step was measured."""
        if rule.exact_step_s is None or not self.times.are_measured:
            return None
        prompts = self.times.prompt_tokens_within(mode, rule.exact_step_s, 0, self._budget_tokens)
        return prompts / rule.exact_step_s
