"""Policies that never change their mind: always FP16, always FP8, or a rule that the engine applies to every step."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from controller.policies.base import Decision, Observation, PolicySpec
from nestedfp.modes import DirectiveMode
from nestedfp.steps.slo_rule import exact_steps
from nestedfp.steps.step_rule import StepRule
from workload.frozen import FrozenModel


class StaticFp16(FrozenModel):
    """Exact FP16 in every step: the quality baseline."""

    name: Literal["static_fp16"] = "static_fp16"


class StaticFp8(FrozenModel):
    """FP8 in every step that holds no pinned request: the speed baseline."""

    name: Literal["static_fp8"] = "static_fp8"


class TokenFraction(FrozenModel):
    """The rule of the NestedFP paper: FP8 for the steps whose tokens pass ``fraction`` of the step's token budget.

    Each engine applies it to its own budget, so that replicas of different sizes may share the policy. It knows neither
    queue nor SLO: a baseline to compare with, and a good one where long prompts cause the misses.
    """

    name: Literal["token_fraction"] = "token_fraction"
    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.5  # of the engine's max_num_batched_tokens

    def rule(self) -> StepRule:
        """The threshold that the engines get."""
        return StepRule(fp8_budget_fraction=self.fraction)


def _always(config: type[Any], decision: Callable[[Observation, Any], Decision]) -> PolicySpec[Any, None]:
    """The policy that says the same whatever the replicas do."""
    return PolicySpec(config, lambda observation, _, given: (decision(observation, given), None), lambda: None, False)


# In steps that the TPOT objective bounds.
SPEC_FP16 = _always(
    StaticFp16, lambda seen, _: Decision(DirectiveMode.FP16, "static_fp16", exact_steps(seen.slo.tpot_ms))
)
SPEC_FP8 = _always(StaticFp8, lambda *_: Decision(DirectiveMode.FP8, "static_fp8"))
SPEC_TOKEN_FRACTION = _always(
    TokenFraction, lambda _, given: Decision(DirectiveMode.AUTO, "token_fraction", given.rule())
)
