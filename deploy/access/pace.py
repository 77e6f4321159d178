"""How fast places in the engine become free while somebody waits for one. Pure.

Only time in which requests waited counts: an engine that is not full says nothing of what it could do. Old evidence fades, by the
same clock, so that a change of precision or of the load shows within some seconds of waiting.
"""

import math

MEMORY_S = 15.0  # of time with a queue, after which evidence weighs 1/e
LEAST_SEQUENCES = 4.0  # that must have ended before anything is concluded
FORGOTTEN_AFTER_S = 30.0  # without a queue: whoever comes then is let in, and shows how fast it goes now


class Pace:
    """Sequences and tokens that make room, per second of time in which others waited, by the clock that every call brings."""

    def __init__(self, now_s: float) -> None:
        self._at_s = self._queue_at_s = now_s
        self._queue_s = 0.0
        self._sequences = 0.0
        self._tokens = 0.0

    def until(self, now_s: float, queue: bool) -> None:
        """Time has passed up to now; ``queue`` says whether somebody waited in it."""
        spent_s, self._at_s = max(0.0, now_s - self._at_s), now_s
        if not queue or spent_s == 0.0:
            return
        kept = math.exp(-spent_s / MEMORY_S)
        # What is left of a second that fades while it passes.
        self._queue_s = self._queue_s * kept + MEMORY_S * (1.0 - kept)
        self._sequences *= kept
        self._tokens *= kept
        self._queue_at_s = now_s

    def freed(self, sequences: int, tokens: int) -> None:
        """A request has ended while others waited."""
        self._sequences += sequences
        self._tokens += tokens

    def wait_s(self, now_s: float, sequences: float = 0.0, tokens: float = 0.0) -> float | None:
        """Return how long it takes until so many sequences, and so many tokens, have made room; None: nobody knows."""
        if self._sequences < LEAST_SEQUENCES or now_s - self._queue_at_s > FORGOTTEN_AFTER_S:
            return None
        by_tokens = tokens / self._tokens if self._tokens else 0.0
        return max(sequences / self._sequences, by_tokens, 0.0) * self._queue_s
