"""What a policy directs while all is well: exact FP16, or FP16 with leave to the engines to run single steps in FP8.

Bursts of a tenth of a second are over before a controller has heard of them, but the engine sees them at its next step.
With a ``calm_*`` parameter the calm directive is ``auto`` instead of ``fp16``: FP16 except for steps past a threshold.
"""

from typing import Annotated

from pydantic import Field

from controller.policies.base import Settings, Slo
from controller.policies.load import Load, over
from nestedfp.modes import DirectiveMode
from nestedfp.step_rule import StepRule


class CalmSettings(Settings):
    """Thresholds of single steps; both null: every step runs FP16."""

    calm_wait_fraction: Annotated[float, Field(gt=0, le=1)] | None = None  # of the TTFT objective, waited by a request
    calm_budget_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None  # of the step's token budget

    @property
    def calm_mode(self) -> DirectiveMode:
        """The mode of the calm directive."""
        strict = self.calm_wait_fraction is None and self.calm_budget_fraction is None
        return DirectiveMode.FP16 if strict else DirectiveMode.AUTO

    def rule(self, slo: Slo, mode: DirectiveMode) -> StepRule:
        """The rule that goes with a directive of this mode."""
        if mode is not DirectiveMode.AUTO:
            return StepRule()
        wait = self.calm_wait_fraction
        return StepRule(
            fp8_wait_s=None if wait is None else wait * slo.ttft_ms / 1e3,
            fp8_budget_fraction=self.calm_budget_fraction,
        )

    def calm_capacity(self, estimate: Load) -> float | None:
        """Tokens per second that the calm directive could serve: with leave to run FP8, as much as FP8 can."""
        return estimate.fp16_capacity if self.calm_mode is DirectiveMode.FP16 else estimate.fp8_capacity

    def calm_load(self, estimate: Load) -> float | None:
        """Offered load over that capacity."""
        return over(estimate.offered, self.calm_capacity(estimate))
