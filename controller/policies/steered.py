"""The policy ``deadlines`` with its fraction steered: as much of the objectives as the requests' attainment leaves room for. Pure.

The engines decide every step by their requests' deadlines (nestedfp/steps/step_slack.py); the controller says which share of
the TTFT objective a step may use up. A droop, as generators share a load by:

    fraction = 1 - droop * (share of requests that missed the SLO - free_miss_share)

with the misses of the last minutes. Misses rise with the fraction and with the load, and the fraction falls with the misses,
so that every load has one point where the two meet: nothing to oscillate between. It also says what a miss is worth: the
busier the replicas, the more exact tokens one miss less would cost, and the more misses are accepted.

The ends: with few misses the fraction is 1, nearly all steps FP16. FP8 for all steps when the fraction has fallen to
``fp8_fraction``, or on danger as in ``slo_feedback``, before anybody has missed; back when nothing of ``returning`` speaks
against it.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from controller.policies import returning
from controller.policies.base import Decision, Observation, PolicySpec
from controller.policies.deadlines import Deadlines
from controller.policies.signals import misses
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule

GRID = 0.05  # of the fractions handed down: every other value is a directive of its own
FEWEST_JUDGED = 500  # requests: of fewer, a single miss would be a share worth a reaction


class Steered(returning.ReturnSettings, misses.MissSettings):
    """Parameters of the policy ``steered``."""

    name: Literal["steered"] = "steered"
    enter_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0  # below it the engines' own rule is at work
    free_miss_share: Annotated[float, Field(ge=0, lt=1)] = 0.006  # up to it nothing is done
    droop: Annotated[float, Field(gt=0)] = 25.0  # a quarter of the objective for each percent of misses beyond
    miss_memory_s: Annotated[float, Field(gt=0)] = 150.0  # misses come in clusters: a shorter one follows every cluster
    fp8_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.25
    hold_s: Annotated[float, Field(gt=0)] = 10.0  # at least between two fractions; upwards a step of 0.05 each
    tpot_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    tpot_grace_tokens: Annotated[int, Field(ge=0, le=1000)] = 3
    # Thresholds of slo_auto: this policy hands deadlines down instead.
    calm_wait_fraction: None = None
    calm_budget_fraction: None = None

    @property
    def calm_mode(self) -> DirectiveMode:
        """The engines choose."""
        return DirectiveMode.AUTO


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers."""

    memory: returning.Memory = field(default_factory=returning.Memory)
    missed: misses.Misses = field(default_factory=misses.Misses)
    fraction: float = 1.0  # handed down
    set_at_s: float | None = None


def decide(observation: Observation, state: State, config: Steered) -> tuple[Decision, State]:
    """Set the fraction by the misses; FP8 on danger or at the fraction's end."""
    now_s = observation.now_s
    view, memory = returning.look(observation, state.memory, config)
    missed = misses.update(observation, state.missed, None, config)  # over changes of mode, too
    share = missed.missed / max(FEWEST_JUDGED, missed.slo_evaluated)
    wanted = 1 - config.droop * max(0.0, share - config.free_miss_share)
    inputs = (*view.inputs, ("miss_share", share), ("wanted_fraction", wanted))
    fraction, set_at_s = state.fraction, state.set_at_s
    mode = DirectiveMode.AUTO
    if observation.current is DirectiveMode.FP8:
        mode, reason, values = returning.leave_fp8(view, memory, observation, config)
        inputs += values
        # It begins again low: the few misses of FP8 say nothing of those to come.
        fraction, set_at_s = min(1.0, config.fp8_fraction + 2 * GRID), now_s
    else:
        held = set_at_s is not None and now_s - set_at_s < config.hold_s
        # Less than a step is noise of the misses.
        if not held and abs(wanted - fraction) > 0.9 * GRID:
            # Down at once and up step by step, because misses are known only when their requests have ended.
            steps = round(min(wanted, fraction + GRID) / GRID)
            fraction, set_at_s = min(1.0, max(config.fp8_fraction, round(steps * GRID, 2))), now_s
        reason = view.calm_reason("fraction_by_misses" if fraction < 1 else "slo_holds")
        if view.danger:
            mode, reason = DirectiveMode.FP8, view.danger
        elif fraction <= config.fp8_fraction:
            mode, reason = DirectiveMode.FP8, "too_many_misses"
    rule = Deadlines(
        ttft_fraction=fraction,
        tpot_fraction=config.tpot_fraction,
        tpot_grace_tokens=config.tpot_grace_tokens,
        decode_reserve_steps=0.0,  # the droop was found without it
        fill_horizon_s=None,  # danger is seen by the signals here
    ).rule_for(observation.slo)
    decision = Decision(
        mode,
        reason,
        rule=rule if mode is DirectiveMode.AUTO else StepRule(),
        inputs=(*inputs, ("fraction", fraction)),
        fp16_load=view.load.fp16_load,
        fp8_load=view.load.fp8_load,
    )
    return decision, State(returning.proposed(memory, mode), missed, fraction, set_at_s)


def start(config: Steered) -> tuple[Decision, State]:
    """FP16 until something is observed."""
    return Decision(DirectiveMode.FP16, "start_in_fp16"), State()


SPEC = PolicySpec(Steered, decide, start, adaptive=True)
