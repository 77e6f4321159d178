"""What the load estimate adds up over all replicas. Pure."""

from dataclasses import dataclass

from controller.fleet.view import Replicas
from nestedfp.modes import Mode

BUSY_MS = 900.0  # of step time in a second: less, and the replica has paused between steps
PURE = 0.98  # share of the steps that one precision must have had


@dataclass(frozen=True, slots=True)
class Sums:
    """Per second, over all replicas that have rates. ``busy``: those of one precision that never paused."""

    replicas: int
    prompt: float
    admitted: float
    computed: float
    busy: dict[Mode, tuple[int, float, float]]  # replicas, steps, tokens
    full: dict[Mode, tuple[int, float]]  # replicas with a standing queue, tokens


def add_up(replicas: Replicas) -> Sums:
    """Look at every replica once."""
    count = n16 = n8 = f16 = f8 = 0
    prompt = admitted = computed = s16 = s8 = t16 = t8 = ft16 = ft8 = 0.0
    for view in replicas:
        rates = view.rates
        if rates is None:
            continue
        count += 1
        prompt += rates.arrived_tokens_per_s
        if rates.arrived_tokens_per_s > rates.queue_growth_tokens_per_s:
            admitted += rates.arrived_tokens_per_s - rates.queue_growth_tokens_per_s
        tokens16, tokens8 = rates.tokens_fp16_per_s, rates.tokens_fp8_per_s
        computed += tokens16 + tokens8
        steps16, steps8 = rates.steps_fp16_per_s, rates.steps_fp8_per_s
        steps = steps16 + steps8
        if steps <= 0:
            continue
        snapshot = view.snapshot
        if steps16 >= PURE * steps:
            step_ms = snapshot.step_ms_fp16
            if step_ms is not None and steps * step_ms >= BUSY_MS:
                n16, s16, t16 = n16 + 1, s16 + steps16, t16 + tokens16
            if view.standing_tokens > 0:
                f16, ft16 = f16 + 1, ft16 + tokens16
        elif steps8 >= PURE * steps:
            step_ms = snapshot.step_ms_fp8
            if step_ms is not None and steps * step_ms >= BUSY_MS:
                n8, s8, t8 = n8 + 1, s8 + steps8, t8 + tokens8
            if view.standing_tokens > 0:
                f8, ft8 = f8 + 1, ft8 + tokens8
    return Sums(
        count,
        prompt,
        admitted,
        computed,
        {Mode.FP16: (n16, s16, t16), Mode.FP8: (n8, s8, t8)},
        {Mode.FP16: (f16, ft16), Mode.FP8: (f8, ft8)},
    )
