"""The engine's own decision, as a table."""

from dataclasses import fields

import pytest

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.step_rule import RANGES, StepRule, choose

AUTO, FP16, FP8 = DirectiveMode.AUTO, DirectiveMode.FP16, DirectiveMode.FP8
HALF = StepRule(fp8_budget_fraction=0.5)


@pytest.mark.parametrize(
    ("tokens", "directive", "rule", "mode", "reason"),
    [
        (8, FP16, HALF, Mode.FP16, "directive"),
        (8, FP8, HALF, Mode.FP8, "directive"),
        (1025, FP16, HALF, Mode.FP16, "directive"),
        (1024, AUTO, HALF, Mode.FP16, "below_thresholds"),  # at a threshold is not past it
        (1025, AUTO, HALF, Mode.FP8, "step_budget"),
        (2048, AUTO, StepRule(), Mode.FP16, "below_thresholds"),
        (1, AUTO, StepRule(fp8_budget_fraction=0), Mode.FP8, "step_budget"),
    ],
)
def test_the_rule(tokens: int, directive: DirectiveMode, rule: StepRule, mode: Mode, reason: str) -> None:
    assert choose(tokens, 2048, directive, rule) == (mode, reason)


@pytest.mark.parametrize("directive", list(DirectiveMode))
def test_a_pinned_request_makes_every_step_fp16(directive: DirectiveMode) -> None:
    assert choose(2048, 2048, directive, HALF, has_pinned=True) == (Mode.FP16, "pinned")


@pytest.mark.parametrize("name", [field.name for field in fields(StepRule)])
@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), float("inf"), -float("inf"), 10**400])
def test_a_number_out_of_its_range_is_no_rule(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"expected {name} from .* to .*, got"):
        StepRule(**{name: value})


def test_every_number_of_a_rule_has_a_range() -> None:
    assert list(RANGES) == [field.name for field in fields(StepRule)]
