"""Sliding windows of latencies. Pure: the caller gives the time."""

from collections import deque

from controller.schema import LatencyWindow


class SlidingWindow:
    """Latencies of the last ``span_s`` seconds, at most ``capacity`` of them.

    Args:
        span_s: how far back samples count, seconds of the caller's clock.
        capacity: samples kept; older ones go first.
    """

    def __init__(self, span_s: float, capacity: int = 2048) -> None:
        self._span_s = span_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=capacity)  # (when_s, latency_ms)

    def add(self, now_s: float, latency_ms: float) -> None:
        """Add one latency."""
        self._samples.append((now_s, latency_ms))

    def summary(self, now_s: float) -> LatencyWindow:
        """Return count and percentiles (nearest rank) of the window."""
        while self._samples and self._samples[0][0] < now_s - self._span_s:
            self._samples.popleft()
        if not self._samples:
            return LatencyWindow()
        ordered = sorted(latency for _, latency in self._samples)
        last = len(ordered) - 1
        p50, p90, p99 = (ordered[round(q * last)] for q in (0.50, 0.90, 0.99))
        return LatencyWindow(count=len(ordered), p50_ms=p50, p90_ms=p90, p99_ms=p99)
