"""Makes time out of a driver's clock that may step: what it returns never falls. Zero I/O.

A step back is taken as no time passed, so that leases and dwell times neither stretch nor start anew. A step forward
cannot be told from a long pause and counts in full: data go stale and leases end early, which is the safe side.
"""


class SteadyClock:
    """Seconds that never run backwards, in the driver's units; equal to the driver's clock until that steps back."""

    def __init__(self) -> None:
        self._latest_s: float | None = None
        self._offset_s = 0.0

    def read(self, now_s: float) -> float:
        """The steady time at ``now_s`` of the driver's clock."""
        steady_s = now_s + self._offset_s
        if self._latest_s is not None and steady_s < self._latest_s:
            self._offset_s += self._latest_s - steady_s
            steady_s = self._latest_s
        self._latest_s = steady_s
        return steady_s

    def to_driver(self, steady_s: float) -> float:
        """The driver's clock at a steady time, by what is known of its steps so far."""
        return steady_s - self._offset_s
