"""What one engine goes by for its steps: their times, its requests' deadlines, and its word of room.

Pure and standard library only: the engine's scheduler and the simulated engine each have one. Times are seconds of one clock.
"""

from nestedfp.modes import Mode
from nestedfp.steps.deadlines.prompt_room import PromptRoom, RoomMargin, capacity_tokens_per_s, prompt_room
from nestedfp.steps.deadlines.step_slack import StepSlack
from nestedfp.steps.step_costs import StepCosts
from nestedfp.steps.step_rule import StepRule
from nestedfp.steps.step_times import StepTimes


class StepWatch:
    """Told of every request and every step; asked whether a step would make somebody late.

    Args:
        budget_tokens: the most tokens of a step.
        max_seqs: the most requests that run at once.
        costs: measured at the engine's start; None: not measured yet.

    Attributes:
        times: what steps take.
        slack: the deadlines of the requests.
        margin: what the engine keeps free where it says its room.
    """

    def __init__(self, budget_tokens: int, max_seqs: int, costs: StepCosts | None = None) -> None:
        self._budget_tokens = budget_tokens
        self._max_seqs = max_seqs
        self.times = StepTimes(costs)
        self.slack = StepSlack(self.times.s_per_prompt_token(budget_tokens))
        self.margin = RoomMargin()

    def use(self, costs: StepCosts | None) -> None:
        """Go by these measured costs from now on."""
        self.times = StepTimes(costs)
        self.slack.prompts.price(self.times.s_per_prompt_token(self._budget_tokens))

    def exact_budget_tokens(self, rule: StepRule, decodes: int) -> int:
        """Return the most tokens of an FP16 step with so many decodes."""
        if rule.exact_step_s is None or not self.times.are_measured:
            return self._budget_tokens
        prompts = self.times.prompt_tokens_within(Mode.FP16, rule.exact_step_s, decodes, self._budget_tokens)
        return min(self._budget_tokens, decodes + prompts)

    def room(
        self, rule: StepRule, mode: Mode, now_s: float, *, decodes: int, line_tokens: int, ends_s: float
    ) -> PromptRoom | None:
        """Return what the engine can take now; None: the rule does not ask.

        Args:
            rule: with the time of steps and first tokens.
            mode: that the engine is directed to; under ``auto`` FP8.
            now_s: the present.
            decodes: requests that get a token in every step.
            line_tokens: of prompts, still to be computed.
            ends_s: when the steps on their way end; a time that has passed where there are none.
        """
        if rule.room_ttft_s is None or rule.exact_step_s is None or not self.times.are_measured:
            return None
        latest_s = self.slack.decodes.latest_end_s(rule.exact_step_s, 1 + rule.tpot_grace_tokens)
        room = prompt_room(
            self.times,
            mode,
            decodes=decodes,
            line_tokens=line_tokens,
            busy_s=max(0.0, ends_s - now_s),
            slack_s=latest_s - now_s,
            ttft_s=self.margin.within(mode, rule.room_ttft_s),
            step_s=rule.exact_step_s,
            budget_tokens=self._budget_tokens,
        )
        self.margin.said(mode, rule.room_ttft_s, room)
        return room

    def capacity_tokens_per_s(self, rule: StepRule, mode: Mode) -> float | None:
        """Return what steps of ``exact_step_s`` compute in a second; None: the rule does not ask, or no step was measured."""
        if rule.exact_step_s is None or not self.times.are_measured:
            return None
        return capacity_tokens_per_s(self.times, mode, rule.exact_step_s, self._budget_tokens)

    def late(
        self,
        rule: StepRule,
        now_s: float,
        tokens: int,
        requests: int,
        kv_usage: float,
        *,
        with_prompts: bool,
        steps: int = 1,
    ) -> str | None:
        """Say which deadline a step that has just been filled would break in FP16, if any; or that it is "full".

        Args:
            rule: with the deadlines.
            now_s: when the step begins.
            tokens: of the step.
            requests: in the engine, those that wait among them.
            kv_usage: share of the KV cache that is taken, 0 to 1.
            with_prompts: whether it computes parts of prompts.
            steps: on their way and not counted yet, with this one.
        """
        ends_s = now_s + self.times.predicted_s(Mode.FP16, tokens, with_prompts=with_prompts)
        late = self.slack.late(rule, ends_s, steps)
        is_full = rule.full_share is not None and max(requests / self._max_seqs, kv_usage) > rule.full_share
        return late or ("full" if is_full else None)
