"""Every engine keeps the deadlines of its own requests: an answer is exact unless that would make one of them late. Pure.

The rule is nestedfp/steps/rows/row_rule.py; here it is told which share of the SLO's objectives a step may use up.
"""

from typing import Annotated, Literal

from pydantic import Field

from controller.policies.base import Decision, Observation, PolicySpec
from nestedfp.modes import DirectiveMode
from nestedfp.steps.slo_rule import USUAL_SHARES, SloShares
from nestedfp.steps.step_rule import StepRule
from workload.frozen import FrozenModel
from workload.slo import Slo


class Deadlines(FrozenModel):
    """Parameters of the policy ``deadlines``."""

    name: Literal["deadlines"] = "deadlines"
    # What they mean: nestedfp/steps/slo_rule.py.
    ttft_fraction: Annotated[float, Field(gt=0, le=1)] = USUAL_SHARES.ttft_fraction
    tpot_fraction: Annotated[float, Field(gt=0, le=1)] = USUAL_SHARES.tpot_fraction
    tpot_grace_tokens: Annotated[int, Field(ge=0, le=1000)] = USUAL_SHARES.tpot_grace_tokens

    def rule_for(self, slo: Slo) -> StepRule:
        """The rule that lets a step use up these shares of the objectives."""
        return SloShares(**self.model_dump(exclude={"name"})).rule(slo.ttft_ms, slo.tpot_ms)


def decide(observation: Observation, state: None, config: Deadlines) -> tuple[Decision, None]:
    """Hand the deadlines down."""
    return Decision(DirectiveMode.AUTO, "deadlines", config.rule_for(observation.slo)), None


SPEC = PolicySpec(Deadlines, decide, lambda: None, adaptive=False)
