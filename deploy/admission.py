"""How many requests a replica lets in at once. Pure.

The controller lowers the limit when FP8 alone cannot hold the SLO. Requests that are in stay in; those that come then
are refused with a message and a time to try again, whether pinned or not.
"""

import math

RETRY_AFTER_S = 2
SEQUENCES_IN_QUEUE = 4  # without a configured limit, the controller's scale counts from this many times the sequences


class Admission:
    """The door of one replica.

    Args:
        limit: requests inside at most; None: as many as come, until the controller lowers the scale.
        sequences: that the engine computes at once.
    """

    def __init__(self, limit: int | None, sequences: int) -> None:
        self._configured = limit
        self._sequences = sequences
        self.scale = 1.0
        self.inside = 0
        self.refused = 0  # since the start

    @property
    def limit(self) -> int | None:
        """Requests inside at most; None: no limit. Never less than one."""
        if self._configured is None and self.scale >= 1.0:
            return None
        base = self._configured or SEQUENCES_IN_QUEUE * self._sequences
        return max(1, math.floor(base * self.scale))

    def enter(self) -> bool:
        """Let a request in; False, and counted, when it must come again later. Each True wants a ``leave``."""
        limit = self.limit
        if limit is not None and self.inside >= limit:
            self.refused += 1
            return False
        self.inside += 1
        return True

    def leave(self) -> None:
        """A request has ended, however it did."""
        assert self.inside > 0, "leave without enter"
        self.inside -= 1

    def message(self) -> str:
        """What a refused client reads."""
        return (
            f"this replica is overloaded: it has {self.inside} requests and takes {self.limit} at present; "
            f"try again after {RETRY_AFTER_S} s"
        )
