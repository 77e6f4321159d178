"""Every engine keeps the deadlines of its own requests: a step runs FP16 unless that would make one of them late. Pure.

The step rule is nestedfp/steps/step_slack.py; here it is told which share of the SLO's objectives a step may use up.
"""

from typing import Annotated, Literal

from pydantic import Field

from controller.policies.base import Decision, Observation, PolicySpec
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule
from workload.frozen import FrozenModel
from workload.slo import Slo


class Deadlines(FrozenModel):
    """Parameters of the policy ``deadlines``."""

    name: Literal["deadlines"] = "deadlines"
    ttft_fraction: Annotated[float, Field(gt=0, le=1)] = 0.7  # of the objective; the rest is for what no engine sees
    tpot_fraction: Annotated[float, Field(gt=0, le=1)] = 0.8
    # Tokens that an answer is trusted to have still to come, to make up for a long step: most have hundreds.
    tpot_grace_tokens: Annotated[int, Field(ge=0, le=1000)] = 3
    # Exact steps with a usual prompt that one of decodes alone leaves time for: they make more tokens exact for the same time.
    decode_reserve_steps: Annotated[float, Field(ge=0, le=100)] = 2.0
    # All of them once this share of the steps with prompts has run FP8 for the decodes' sake, before that fewer; 0: always all,
    # with which answers in quiet hours begin in FP8.
    decode_reserve_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    # FP8 when the engine would be full in so many seconds at the growth of the last one; null: deadlines alone.
    fill_horizon_s: Annotated[float, Field(gt=0, le=600)] | None = 6.0
    # Full: an FP8 step of decodes takes this share of the TPOT deadline; the rest is for prompts. Or max_num_seqs is reached.
    fill_decode_share: Annotated[float, Field(gt=0, le=1)] = 0.6

    # The same two where an engine computes exact and fast requests in one step.
    rows_ttft_fraction: Annotated[float, Field(gt=0, le=1)] = 0.8
    rows_tpot_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9

    def rule_for(self, slo: Slo) -> StepRule:
        """The rule that lets a step use up these shares of the objectives."""
        return StepRule(
            ttft_deadline_s=self.ttft_fraction * slo.ttft_ms * 1e-3,
            tpot_deadline_s=self.tpot_fraction * slo.tpot_ms * 1e-3,
            tpot_grace_tokens=self.tpot_grace_tokens,
            decode_reserve_steps=self.decode_reserve_steps,
            decode_reserve_share=self.decode_reserve_share,
            fill_horizon_s=self.fill_horizon_s,
            fill_decode_share=self.fill_decode_share,
            rows_ttft_s=self.rows_ttft_fraction * slo.ttft_ms * 1e-3,
            rows_tpot_s=self.rows_tpot_fraction * slo.tpot_ms * 1e-3,
        )


def decide(observation: Observation, state: None, config: Deadlines) -> tuple[Decision, None]:
    """Hand the deadlines down."""
    return Decision(DirectiveMode.AUTO, "deadlines", config.rule_for(observation.slo)), None


SPEC = PolicySpec(
    Deadlines, decide, lambda config: (Decision(DirectiveMode.FP16, "start_in_fp16"), None), adaptive=False
)
