"""The engine's own decision, as a table."""

from dataclasses import fields

import pytest

from nestedfp.modes import DirectiveMode, Mode
from nestedfp.steps.step_rule import RANGES, StepRule, StepSignals, choose

AUTO, FP16, FP8 = DirectiveMode.AUTO, DirectiveMode.FP16, DirectiveMode.FP8
BOTH = StepRule(fp8_step_tokens=1024, fp8_budget_fraction=0.1)
BUSY = StepSignals(scheduled_tokens=2048, has_pinned=False)
HALF = StepRule(fp8_budget_fraction=0.5)
CALM = StepSignals(scheduled_tokens=8, has_pinned=False)


@pytest.mark.parametrize(
    ("signals", "directive", "rule", "mode", "reason"),
    [
        (CALM, FP16, BOTH, Mode.FP16, "directive"),
        (CALM, FP8, BOTH, Mode.FP8, "directive"),
        (BUSY, FP16, BOTH, Mode.FP16, "directive"),
        (CALM, AUTO, BOTH, Mode.FP16, "below_thresholds"),
        (BUSY, AUTO, BOTH, Mode.FP8, "step_tokens"),
        (BUSY, AUTO, StepRule(), Mode.FP16, "below_thresholds"),
        (StepSignals(1024, False), AUTO, BOTH, Mode.FP16, "below_thresholds"),  # at a threshold is not past it
        (StepSignals(1025, False), AUTO, BOTH, Mode.FP8, "step_tokens"),
        (StepSignals(1, False), AUTO, StepRule(fp8_step_tokens=0), Mode.FP8, "step_tokens"),
        (
            StepSignals(1024, False, budget_tokens=2048),
            AUTO,
            HALF,
            Mode.FP16,
            "below_thresholds",
        ),  # half: not past
        (StepSignals(1025, False, budget_tokens=2048), AUTO, HALF, Mode.FP8, "step_budget"),
        (StepSignals(1025, False, budget_tokens=8192), AUTO, HALF, Mode.FP16, "below_thresholds"),
        (StepSignals(1025, False), AUTO, HALF, Mode.FP16, "below_thresholds"),  # budget unknown: no ground for FP8
        (StepSignals(1025, False, budget_tokens=2048), FP16, HALF, Mode.FP16, "directive"),
    ],
)
def test_the_rule(signals: StepSignals, directive: DirectiveMode, rule: StepRule, mode: Mode, reason: str) -> None:
    choice = choose(signals, directive, rule)
    assert (choice.mode, choice.reason) == (mode, reason)


@pytest.mark.parametrize("directive", list(DirectiveMode))
def test_a_pinned_request_makes_every_step_fp16(directive: DirectiveMode) -> None:
    choice = choose(StepSignals(2048, has_pinned=True), directive, BOTH)
    assert (choice.mode, choice.reason) == (Mode.FP16, "pinned")


@pytest.mark.parametrize("name", [field.name for field in fields(StepRule)])
@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), float("inf"), -float("inf"), 10**400])
def test_a_number_out_of_its_range_is_no_rule(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"expected {name} from .* to .*, got"):
        StepRule(**{name: value})


def test_every_number_of_a_rule_has_a_range() -> None:
    assert list(RANGES) == [field.name for field in fields(StepRule)]
