"""The policy ``deadlines``, as strict as the requests' misses ask for. Pure.

The engines decide every step by their requests' deadlines (nestedfp/steps/step_slack.py); the controller says how much of them a
step may use up, from ``STRICT`` to ``LENIENT``. A droop, as generators share a load by, on the share of requests that missed the
SLO of late:

    leniency = 1 at half of target_miss_share, 0 at twice of it, a straight line between

Misses rise with the leniency and with the load, and the leniency falls with the misses, so that every load has one point where
the two meet: nothing to oscillate between. Calm hours come to rest below the target, near the lenient end; busy ones above it.
At the strict end all steps run FP8, so that whatever is beyond FP8 (``decide/overload.py``) knows that nothing is left here.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from controller.fleet import path_limit
from controller.policies.base import Decision, Observation, PolicySpec
from controller.policies.deadlines import Deadlines
from controller.policies.signals import misses
from nestedfp.modes import DirectiveMode
from workload.frozen import FrozenModel

STRICT = Deadlines(ttft_fraction=0.45, tpot_fraction=0.6, tpot_grace_tokens=1)
LENIENT = Deadlines(ttft_fraction=0.75, tpot_fraction=0.85, tpot_grace_tokens=3)
START = 0.8  # the defaults of ``deadlines``
LEAVE_FP8 = 0.25  # the leniency asked for that ends FP8 for all: an overload that goes on must not come and go with every second
GRID = 0.05  # of the leniencies handed down: every other value is a directive of its own
FEWEST_JUDGED = 500  # requests: of fewer, a single miss would be a share worth a reaction


class Steered(FrozenModel):
    """Parameters of the policy ``steered``."""

    name: Literal["steered"] = "steered"
    # Of the requests: with 0.01, some 99 of 100 are to keep the SLO.
    target_miss_share: Annotated[float, Field(gt=0, le=0.25)] = 0.01
    miss_memory_s: Annotated[float, Field(gt=0)] = 60.0
    hold_s: Annotated[float, Field(gt=0)] = 3.0  # at least between two changes; upwards a step of 0.05 each


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers."""

    missed: misses.Misses = field(default_factory=misses.Misses)
    leniency: float = START  # handed down
    set_at_s: float | None = None


def rule_at(leniency: float) -> Deadlines:
    """The parameters between ``STRICT``, at 0, and ``LENIENT``, at 1."""

    def between(strict: float, lenient: float) -> float:
        return strict + leniency * (lenient - strict)

    return Deadlines(
        ttft_fraction=round(between(STRICT.ttft_fraction, LENIENT.ttft_fraction), 4),
        tpot_fraction=round(between(STRICT.tpot_fraction, LENIENT.tpot_fraction), 4),
        tpot_grace_tokens=round(between(STRICT.tpot_grace_tokens, LENIENT.tpot_grace_tokens)),
    )


def decide(observation: Observation, state: State, config: Steered) -> tuple[Decision, State]:
    """Set the leniency by the misses."""
    now_s, target = observation.now_s, config.target_miss_share
    missed = misses.update(observation, state.missed, None, config.miss_memory_s)
    judged = max(FEWEST_JUDGED, missed.slo_evaluated)
    # No more than the strict end asks for: what a burst leaves behind would hold calm minutes to FP8.
    missed = replace(missed, missed=min(missed.missed, 2.0 * target * judged))
    share = missed.missed / judged
    wanted = min(1.0, max(0.0, (2.0 * target - share) / (1.5 * target)))
    leniency, set_at_s = state.leniency, state.set_at_s
    held = set_at_s is not None and now_s - set_at_s < config.hold_s
    stays = leniency == 0 and wanted < LEAVE_FP8
    # Less than a step is noise of the misses.
    if not held and not stays and abs(wanted - leniency) > 0.9 * GRID:
        # Down at once and up step by step, because misses are known only when their requests have ended.
        leniency, set_at_s = round(round(min(wanted, leniency + GRID) / GRID) * GRID, 2), now_s
    limited = path_limit.limited_count(observation.replicas)
    inputs = (("miss_share", share), ("leniency", leniency), *path_limit.inputs(limited))
    if leniency == 0:
        decision = Decision(DirectiveMode.FP8, "too_many_misses", inputs=inputs)
    else:
        reason = path_limit.calm_reason(limited, "slo_holds" if share <= target else "many_misses")
        decision = Decision(DirectiveMode.AUTO, reason, rule_at(leniency).rule_for(observation.slo), inputs)
    return decision, State(missed, leniency, set_at_s)


def start(config: Steered) -> tuple[Decision, State]:
    """FP16 until something is observed."""
    return Decision(DirectiveMode.FP16, "start_in_fp16"), State()


SPEC = PolicySpec(Steered, decide, start, adaptive=True)
