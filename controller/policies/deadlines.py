"""Every engine keeps the deadlines of its own requests: an answer is exact unless that would make one of them late. Pure.

The rule is nestedfp/steps/rows/row_rule.py; here it is told which share of the SLO's objectives a step may use up. Every engine
says how many prompt tokens it can compute in time, and HAProxy sends a request to the one with the most room.
"""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from controller.policies.base import Decision, Observation, PolicySpec
from nestedfp.modes import DirectiveMode
from nestedfp.steps.slo_rule import USUAL_SHARES, SloShares
from nestedfp.steps.step_rule import StepRule
from workload.frozen import FrozenModel
from workload.slo import Slo

ROOM_TTFT_SHARE = 0.9  # of the objective; the rest is for the way to the replica and back
STEP_TPOT_SHARE = 0.9


class Deadlines(FrozenModel):
    """Parameters of the policy ``deadlines``."""

    name: Literal["deadlines"] = "deadlines"
    # What they mean: nestedfp/steps/slo_rule.py.
    ttft_fraction: Annotated[float, Field(gt=0, le=1)] = USUAL_SHARES.ttft_fraction
    tpot_fraction: Annotated[float, Field(gt=0, le=1)] = USUAL_SHARES.tpot_fraction
    tpot_grace_tokens: Annotated[int, Field(ge=0, le=1000)] = USUAL_SHARES.tpot_grace_tokens

    def rule_for(self, slo: Slo) -> StepRule:
        """The rule that lets a step use up these shares of the objectives, and has engines tell their room."""
        return replace(
            SloShares(**self.model_dump(exclude={"name"})).rule(slo.ttft_ms, slo.tpot_ms),
            exact_step_s=STEP_TPOT_SHARE * slo.tpot_ms * 1e-3,
            room_ttft_s=ROOM_TTFT_SHARE * slo.ttft_ms * 1e-3,
        )


def decide(observation: Observation, state: None, config: Deadlines) -> tuple[Decision, None]:
    """Hand the deadlines down."""
    return Decision(DirectiveMode.AUTO, "deadlines", config.rule_for(observation.slo)), None


SPEC = PolicySpec(Deadlines, decide, lambda: None, adaptive=False)
