"""How busy the sender's process is."""

import time

MIN_SPAN_S = 0.1  # a share of less: the two clocks are read one after the other, and a full collection fills it


class Gauge:
    """Processor time of this process, and the lag of its event loop."""

    def __init__(self) -> None:
        self._begin_s = time.process_time()
        self._cpu_s, self._wall_s = self._begin_s, time.perf_counter()
        self._share, self._lag_s = 0.0, 0.0

    def late(self, lag_s: float) -> None:
        """The event loop was late by so much."""
        self._lag_s = max(self._lag_s, lag_s)

    def take(self) -> dict[str, float]:
        """Processor time since the start; processor share and largest lag since the last call.

        A call that comes within ``MIN_SPAN_S`` of the last one repeats its share and begins no new span.
        """
        cpu_s, wall_s, lag_s = time.process_time(), time.perf_counter(), self._lag_s
        self._lag_s = 0.0
        if wall_s - self._wall_s >= MIN_SPAN_S:
            self._share = (cpu_s - self._cpu_s) / (wall_s - self._wall_s)
            self._cpu_s, self._wall_s = cpu_s, wall_s
        return {"cpu_s": cpu_s - self._begin_s, "cpu_share": self._share, "lag_ms": 1e3 * lag_s}
