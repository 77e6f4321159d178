"""The policies by name. To add one: a file with a config model and a ``decide``, then a line in each table here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from controller.policies import deadlines, exact_first, fixed, threshold
from controller.policies.base import PolicySpec

PolicyConfig = Annotated[
    exact_first.ExactFirst
    | deadlines.Deadlines
    | threshold.Threshold
    | fixed.TokenFraction
    | fixed.StaticFp16
    | fixed.StaticFp8,
    Field(discriminator="name"),
]

POLICIES: Mapping[str, PolicySpec[Any, Any]] = MappingProxyType(
    {
        "exact_first": exact_first.SPEC,
        "static_fp16": fixed.SPEC_FP16,
        "static_fp8": fixed.SPEC_FP8,
        "token_fraction": fixed.SPEC_TOKEN_FRACTION,
        "threshold": threshold.SPEC,
        "deadlines": deadlines.SPEC,
    }
)

__all__ = ["POLICIES", "PolicyConfig", "PolicySpec"]
