"""How many prompt tokens an engine can still take so that their first tokens come in time: what requests are routed by.

Pure and standard library only, as all of this folder, so that the engine's scheduler and the simulator run the same code.
An engine computes prompts in steps of a bounded time, each beside one token for every request that decodes. So prompts are
computed at a rate, and the time that is left of the deadline, less the step that runs and one of their own, holds so many.
"""

from dataclasses import dataclass

from nestedfp.modes import Mode
from nestedfp.steps.step_slack import StepTimes


@dataclass(frozen=True, slots=True)
class PromptRoom:
    """What an engine can take.

    Attributes:
        tokens: of prompts that come now; below zero, as many are late already.
        full_tokens: the same of an engine without a line.
        tokens_per_s: how fast the room grows back.
    """

    tokens: int
    full_tokens: int
    tokens_per_s: float


def prompt_room(
    times: StepTimes,
    mode: Mode,
    *,
    decodes: int,
    line_tokens: int,
    busy_s: float,
    slack_s: float,
    ttft_s: float,
    step_s: float,
    budget_tokens: int,
) -> PromptRoom:
    """Return the room of an engine.

    Args:
        times: what steps take.
        mode: that the engine is directed to; under ``auto`` FP8, which it runs where it must.
        decodes: requests that get a token in every step.
        line_tokens: of prompts, still to be computed.
        busy_s: until the step that runs has ended.
        slack_s: until the next token of those that decode must be there; infinity: none decodes.
        ttft_s: that first tokens may take.
        step_s: that a step may take.
        budget_tokens: the most tokens of a step.
    """
    chunk = times.prompt_tokens_within(mode, step_s, decodes, budget_tokens)
    took_s = times.predicted_s(mode, decodes + chunk, with_prompts=True)
    if chunk == 0 or took_s <= 0:
        return PromptRoom(-line_tokens, 0, 0.0)
    per_s = chunk / took_s
    full = max(0, int(per_s * (ttft_s - took_s)))
    # One more prompt would have the decodes wait for too long a step.
    room = int(per_s * (ttft_s - took_s - busy_s)) if slack_s >= took_s else 0
    return PromptRoom(room - line_tokens, full, per_s)


def capacity_tokens_per_s(times: StepTimes, mode: Mode, step_s: float, budget_tokens: int) -> float:
    """Return the tokens per second, of prompts and answers together, of an engine whose steps take ``step_s`` seconds."""
    return times.prompt_tokens_within(mode, step_s, 0, budget_tokens) / step_s
