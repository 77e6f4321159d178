"""Policies that never change their mind: always FP16, always FP8, or a rule that the engine applies to every step."""

from typing import Annotated, Literal

from pydantic import Field

from controller.policies.base import Decision, Observation, PolicySpec
from nestedfp.modes import DirectiveMode
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


FP16 = Decision(DirectiveMode.FP16, "static_fp16")
FP8 = Decision(DirectiveMode.FP8, "static_fp8")


def decide_fp16(observation: Observation, state: None, config: StaticFp16) -> tuple[Decision, None]:
    """Always FP16."""
    return FP16, None


def decide_fp8(observation: Observation, state: None, config: StaticFp8) -> tuple[Decision, None]:
    """Always FP8."""
    return FP8, None


def decide_token_fraction(observation: Observation, state: None, config: TokenFraction) -> tuple[Decision, None]:
    """Always the paper's rule, step by step in the engine."""
    return Decision(DirectiveMode.AUTO, "token_fraction", config.rule()), None


SPEC_FP16 = PolicySpec(StaticFp16, decide_fp16, lambda config: (FP16, None), adaptive=False)
SPEC_FP8 = PolicySpec(StaticFp8, decide_fp8, lambda config: (FP8, None), adaptive=False)
SPEC_TOKEN_FRACTION = PolicySpec(
    TokenFraction,
    decide_token_fraction,
    lambda config: (Decision(DirectiveMode.AUTO, "token_fraction", config.rule()), None),
    adaptive=False,
)
