"""Admission control: how many sequences a replica takes at once. Pure.

The controller lowers the limit when FP8 alone cannot hold the SLO. Requests that are in stay in; those that come then
are refused with a message and a time to try again, whether pinned or not.
"""

import math

SEQUENCES_IN_QUEUE = 4  # without a configured limit, the controller's scale counts from this many times the sequences


class Admission:
    """Admission control of one replica.

    A request counts as the sequences that it makes the engine compute: its prompts times ``n``.

    Args:
        limit: sequences inside at most; None: as many as come, until the controller lowers the scale.
        sequences: that the engine computes at once.
    """

    def __init__(self, limit: int | None, sequences: int) -> None:
        self._configured = limit
        self._sequences = sequences
        self.scale = 1.0
        self.inside = 0
        self.refused = 0  # requests since the start

    @property
    def limit(self) -> int | None:
        """Sequences inside at most; None: no limit. Never less than one."""
        if self._configured is None and self.scale >= 1.0:
            return None
        base = self._configured or SEQUENCES_IN_QUEUE * self._sequences
        return max(1, math.floor(base * self.scale))

    def enter(self, weight: int = 1) -> bool:
        """Let a request of ``weight`` sequences in; False, and counted, when it must come again later.

        One that is larger than the limit gets in where it is alone: it could never come otherwise. Each True wants a
        ``leave`` with the same weight.
        """
        limit = self.limit
        if limit is not None and self.inside and self.inside + weight > limit:
            self.refused += 1
            return False
        self.inside += weight
        return True

    def leave(self, weight: int = 1) -> None:
        """A request has ended, however it did."""
        assert self.inside >= weight, "leave without enter"
        self.inside -= weight

    def message(self) -> str:
        """What a refused client reads."""
        return f"overloaded: this replica computes {self.inside} sequences and takes {self.limit} at present; try again"
