"""Fast up, slow down: FP8 as soon as the SLO is in danger, FP16 again only when FP16 is predicted to hold it. Pure.

FP8 when the strain on TTFT or TPOT, as an EWMA over seconds, passes ``enter_strain``, or when too many requests miss the
SLO. One replica alone is in danger for 0.7 s before that, one of four for 5 s; a queue of many times the objective takes
0.2 s. FP16 again when nothing of ``returning`` speaks against it.

``slo_auto`` is the same policy with leave to the engines to run single steps in FP8 while all is well.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from controller.policies import returning
from controller.policies.base import Decision, Observation, PolicySpec
from controller.policies.signals import misses
from nestedfp.modes import DirectiveMode


class SloSettings(returning.ReturnSettings, misses.MissSettings):
    """Parameters of both policies."""


class SloFeedback(SloSettings):
    """Parameters of the policy ``slo_feedback``."""

    name: Literal["slo_feedback"] = "slo_feedback"


class SloAuto(SloSettings):
    """Parameters of the policy ``slo_auto``."""

    name: Literal["slo_auto"] = "slo_auto"
    calm_wait_fraction: Annotated[float, Field(gt=0, le=1)] | None = 0.1
    calm_budget_fraction: Annotated[float, Field(gt=0, lt=1)] | None = 0.4


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers."""

    memory: returning.Memory = field(default_factory=returning.Memory)
    missed: misses.Misses = field(default_factory=misses.Misses)


def decide(observation: Observation, state: State, config: SloSettings) -> tuple[Decision, State]:
    """Enter on danger, leave on a prediction that FP16 would hold the SLO."""
    view, memory = returning.look(observation, state.memory, config)
    missed = misses.update(observation, state.missed, memory.history.changed_at_s, config.miss_memory_s)
    inputs, mode = view.inputs, DirectiveMode.FP8
    if observation.current is DirectiveMode.FP8:
        mode, reason, values = returning.leave_fp8(view, memory, observation, config)
        inputs += values
    else:
        share = misses.share(missed, config)
        if share is not None:
            inputs = (*inputs, ("miss_share", share))
        if view.danger:
            reason = view.danger
        elif share is not None and config.max_miss_share is not None and share > config.max_miss_share:
            reason = "too_many_misses"
        else:
            mode, reason = config.calm_mode, view.calm_reason("slo_holds")
    decision = returning.decision(view, observation, config, mode, reason, inputs)
    return decision, State(returning.proposed(memory, mode), missed)


def start(config: SloSettings) -> tuple[Decision, State]:
    """FP16 until something is observed."""
    return Decision(DirectiveMode.FP16, "start_in_fp16"), State()


SPEC = PolicySpec(SloFeedback, decide, start, adaptive=True)
SPEC_AUTO = PolicySpec(SloAuto, decide, start, adaptive=True)
