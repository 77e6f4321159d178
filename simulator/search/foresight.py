"""The best schedule of a window found with knowledge of the future: a lower bound on what is possible. Pure; numpy only.

Local search over plans (``schedule``), for the most exact tokens with no more than so many misses. One replay tries a change
in many places at once: they lie so far apart that each is judged by the requests that arrive around it, and the plan
of all that seem to pay is replayed before it is taken. A miss costs a price in tokens, which rises while there are too many
and falls while there are few, so that the search finds out itself which requests are best given up. Worse plans are
taken now and then, less and less. The same arguments and seed give the same plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.search.schedule import LEVELS, SLICE_S, Played, Window, constant, play

APART_S = 5.0  # between two changes that are tried at once
BEFORE_S = 2.0  # requests that have arrived so long before a change are judged by it
LONGEST_CHANGE = 16  # slices
WORSE_TOKENS = 100.0  # that a change may lose, in the beginning
PRICE_STEP = 1.03  # a round
STEEPEST = 4  # such steps in a round, far from the target
RESCUES = 0.7  # of the changes in a place with misses, while there are too many of them
CAREFUL_LEVELS = 4  # the first ones; a rescue takes one of them


@dataclass(frozen=True, slots=True)
class MissTarget:
    """What a schedule must keep."""

    name: str
    misses: int  # requests beyond the SLO, at most


def search(window: Window, targets: Sequence[MissTarget], rounds: int, seed: int) -> list[Played | None]:
    """Return the best schedule found for each target, in their order; None where none was found.

    Every schedule that is played counts for all targets.

    It starts from the plan with one level that is best for the first of the targets, goes to the target with the most misses
    and from there to the next.
    """
    search = _Search(window, targets, np.random.default_rng([0x0AC1E, seed]))
    starts = [search.play(constant(window, number)) for number in range(len(LEVELS))]
    base = max(starts, key=lambda start: start.exact_tokens - search.price * max(0, start.misses - targets[0].misses))
    for target in sorted(targets, key=lambda target: -target.misses):
        base = search.go(base, target.misses, rounds)
    return [search.best[target] for target in targets]


class _Search:
    """The search's memory: what a miss costs, and the best schedule played for each target."""

    def __init__(self, window: Window, targets: Sequence[MissTarget], rng: np.random.Generator) -> None:
        self._window, self._rng = window, rng
        self._arrived_s = np.array([arrival.at_s for arrival in window.arrivals])
        self.price = 2.0 * sum(a.prompt_tokens + a.output_tokens for a in window.arrivals) / len(window.arrivals)
        self.best: dict[MissTarget, Played | None] = dict.fromkeys(targets)

    def play(self, plan: bytes) -> Played:
        """Replay a plan, and remember it where it is the best."""
        played = play(self._window, plan)
        for target, best in self.best.items():
            if played.misses <= target.misses and (best is None or played.exact_tokens > best.exact_tokens):
                self.best[target] = played
        return played

    def go(self, base: Played, allowed: int, rounds: int) -> Played:
        """Change the plan for so many rounds, towards the most exact tokens with ``allowed`` misses; returns where it ends."""
        for number in range(rounds):
            base = self._round(base, allowed, WORSE_TOKENS * max(0.0, 1 - 1.25 * number / rounds))
            over = min(max(base.misses - allowed, -STEEPEST), STEEPEST)
            self.price *= PRICE_STEP ** (over or -1)
        return base

    def _round(self, base: Played, allowed: int, worse_tokens: float) -> Played:
        """Try changes in many places at once, and take those that pay."""
        arrived_s, rng = self._arrived_s, self._rng
        first_s = rng.uniform(-APART_S / 2, APART_S / 2)
        places_s = np.arange(first_s, self._window.slices * SLICE_S, APART_S)
        place_of = np.clip(((arrived_s - first_s + BEFORE_S) // APART_S).astype(int), 0, len(places_s) - 1)
        missed_at_s = [arrived_s[(place_of == place) & ~base.met] for place in range(len(places_s))]
        trial, spans = changed(base.plan, places_s.tolist(), missed_at_s if base.misses > allowed else None, rng)
        tried = self.play(trial)
        gained = _by_place(tried.exact - base.exact, place_of, len(places_s))
        missed = _by_place(base.met.astype(int) - tried.met.astype(int), place_of, len(places_s))
        kept = gained - self.price * missed >= -worse_tokens * rng.random(len(places_s))
        if not kept.any():
            return base
        merged = tried if kept.all() else self.play(_merged(base.plan, trial, spans, kept))
        lost = base.exact_tokens - merged.exact_tokens + self.price * (merged.misses - base.misses)
        return merged if lost <= worse_tokens * np.count_nonzero(kept) else base


def changed(
    plan: bytes, places_s: Sequence[float], rescue: Sequence[NDArray[np.float64]] | None, rng: np.random.Generator
) -> tuple[bytes, list[tuple[int, int]]]:
    """Set a short span of slices at each place to some level.

    Args:
        plan: as it is.
        places_s: times.
        rescue: for each place the arrivals of requests that miss; many a change is then a careful level around one of them.
        rng: source of the choices.

    Returns:
        The changed plan, and each span's first slice and the one after its last.
    """
    new, spans = bytearray(plan), []
    for place, at_s in enumerate(places_s):
        levels = len(LEVELS)
        if rescue is not None and len(rescue[place]) and rng.random() < RESCUES:
            levels = CAREFUL_LEVELS
            at_s = rng.choice(rescue[place]) + rng.uniform(-1.0, 1.5)
        begin = min(max(0, int(at_s / SLICE_S)), len(plan) - 1)
        end = min(len(plan), begin + int(LONGEST_CHANGE ** rng.random()))
        spans.append((begin, end))
        new[begin:end] = bytes([int(rng.integers(levels))]) * (end - begin)
    return bytes(new), spans


def _merged(base: bytes, trial: bytes, spans: Sequence[tuple[int, int]], kept: NDArray[np.bool_]) -> bytes:
    """The base with the spans that are kept, as they are in the trial."""
    plan = bytearray(base)
    for (begin, end), keep in zip(spans, kept, strict=True):
        if keep:
            plan[begin:end] = trial[begin:end]
    return bytes(plan)


def _by_place(values: NDArray[np.int64], place_of: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    return np.bincount(place_of, weights=values, minlength=count).astype(np.float64)
