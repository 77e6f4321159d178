"""The policies by name. To add one: a file with a config model and a ``decide``, then a line in each table here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from controller.policies import deadlines, error_budget, fixed, predictive, slo_feedback, steered, threshold
from controller.policies.base import PolicySpec

PolicyConfig = Annotated[
    fixed.StaticFp16
    | fixed.StaticFp8
    | fixed.EngineAuto
    | fixed.TokenFraction
    | threshold.Threshold
    | slo_feedback.SloFeedback
    | slo_feedback.SloAuto
    | error_budget.ErrorBudget
    | predictive.Predictive
    | deadlines.Deadlines
    | steered.Steered,
    Field(discriminator="name"),
]

POLICIES: Mapping[str, PolicySpec[Any, Any]] = MappingProxyType(
    {
        "static_fp16": fixed.SPEC_FP16,
        "static_fp8": fixed.SPEC_FP8,
        "engine_auto": fixed.SPEC_AUTO,
        "token_fraction": fixed.SPEC_TOKEN_FRACTION,
        "threshold": threshold.SPEC,
        "slo_feedback": slo_feedback.SPEC,
        "slo_auto": slo_feedback.SPEC_AUTO,
        "error_budget": error_budget.SPEC,
        "predictive": predictive.SPEC,
        "deadlines": deadlines.SPEC,
        "steered": steered.SPEC,
    }
)

__all__ = ["POLICIES", "PolicyConfig", "PolicySpec"]
