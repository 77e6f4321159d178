"""The step rule that keeps an SLO: which share of its objectives a step may use up. Pure; standard library only."""

from dataclasses import dataclass

from nestedfp.steps.step_rule import StepRule


@dataclass(frozen=True, slots=True)
class SloShares:
    """Shares of the objectives, and the numbers beside them that were tuned with them; see ``StepRule``."""

    ttft_fraction: float = 0.8  # of the objective; the rest is for what no engine sees
    tpot_fraction: float = 0.9
    # Tokens that an answer is trusted to have still to come, to make up for a long step: most have hundreds.
    tpot_grace_tokens: int = 3

    def rule(self, ttft_ms: float, tpot_ms: float) -> StepRule:
        """Return the rule that lets a step use up these shares of the objectives.

        Raises:
            ValueError: for an objective that is not above 0, or is too large.
        """
        return StepRule(
            ttft_deadline_s=self.ttft_fraction * ttft_ms * 1e-3,
            tpot_deadline_s=self.tpot_fraction * tpot_ms * 1e-3,
            tpot_grace_tokens=self.tpot_grace_tokens,
        )


# Of the TPOT objective: what a step with prompts may take under FP16 alone. Shorter ones have first tokens wait.
EXACT_STEP_SHARE = 1.2


def exact_steps(tpot_ms: float) -> StepRule:
    """Return the rule that bounds the steps of an engine held in FP16: no long prompt has all answers miss the objective."""
    return StepRule(exact_step_s=EXACT_STEP_SHARE * tpot_ms * 1e-3)


USUAL_SHARES = SloShares()
