"""Learning from returns to FP16 that had to be undone. Shared by the adaptive policies. Pure.

A return undone within ``undo_within_s`` was a mistake: the next one waits twice as long, up to ``longest_hold_s``. A
return that lasted resets the wait. Besides, the load at which the return failed is remembered for ``memory_holds``
waits: until then the load must have fallen below ``return_load`` of it. So a load that FP16 cannot carry costs ever
fewer tries, down to one in 40 minutes. A load that has passed, below ``passed_load`` of it, costs nothing: then nothing is
waited for either.

The same idea ended the oscillation of another planner: before scaling down, ask whether the smaller configuration
would hold the objective at the present load.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from nestedfp.modes import DirectiveMode
from workload.frozen import FrozenModel


class BackoffSettings(FrozenModel):
    """Parameters of the back-off."""

    undo_within_s: Annotated[float, Field(ge=0)] = 60.0  # a stay in FP16 shorter than this was a mistake
    first_hold_s: Annotated[float, Field(ge=0)] = 10.0  # in FP8 before FP16 is tried again
    longest_hold_s: Annotated[float, Field(gt=0)] = 600.0
    memory_holds: Annotated[float, Field(ge=1)] = 4.0  # the failure counts this many times as long as the wait
    passed_load: Annotated[float, Field(ge=0, le=1)] = 0.25  # of the load at which FP16 failed: below, no wait
    return_load: Annotated[float, Field(gt=0, le=1)] = 0.9  # of the load at which FP16 failed, and of its capacity


@dataclass(frozen=True, slots=True)
class Backoff:
    """What is remembered of earlier changes."""

    mode: DirectiveMode | None = None  # in force at the last decision
    proposed: DirectiveMode | None = None  # by the last decision
    changed_at_s: float | None = None  # when the mode changed; None: not since the start
    hold_s: float = 0.0
    failed_load: float | None = None  # tokens per second and replica
    failed_at_s: float = 0.0


def observe(
    state: Backoff, now_s: float, current: DirectiveMode, load: float | None, settings: BackoffSettings
) -> Backoff:
    """Notice a change of the mode in force. Only entries into FP8 that the policy wished count as failures of FP16."""
    if state.failed_load is not None and now_s - state.failed_at_s > memory_s(state, settings):
        state = replace(state, failed_load=None)
    if current is state.mode:
        return state
    first = state.mode is None
    entered = current is DirectiveMode.FP8 and state.proposed is DirectiveMode.FP8 and not first
    if entered:
        since_s = state.changed_at_s
        undone = since_s is not None and now_s - since_s < settings.undo_within_s
        hold_s = min(settings.longest_hold_s, 2 * max(state.hold_s, settings.first_hold_s))
        state = replace(state, hold_s=hold_s if undone else settings.first_hold_s)
        # One bad moment after a long calm says little about the load: only a failed return names the load as its cause.
        if not undone:
            state = replace(state, failed_load=None)
        elif load is not None:
            failed = load if state.failed_load is None else min(load, state.failed_load)
            state = replace(state, failed_load=failed, failed_at_s=now_s)
    return replace(state, mode=current, changed_at_s=None if first else now_s)


def memory_s(state: Backoff, settings: BackoffSettings) -> float:
    """How long the failure counts."""
    return settings.memory_holds * state.hold_s


def hold_left_s(state: Backoff, now_s: float) -> float:
    """Seconds until FP16 may be tried again."""
    return 0.0 if state.changed_at_s is None else max(0.0, state.changed_at_s + state.hold_s - now_s)


def proposed(state: Backoff, mode: DirectiveMode) -> Backoff:
    """Note what the policy decided; guards may still hold it back."""
    return state if state.proposed is mode else replace(state, proposed=mode)
