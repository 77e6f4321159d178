"""The latency windows of a replica's snapshot, for samples that come in groups. Pure: the caller gives the time.

The live window holds up to 2048 single samples of the last 5 s and sorts them for every snapshot. In the simulator all
requests that decode in a step get the same time between tokens, so a sample has a weight; percentiles (nearest rank)
come out the same.
"""

from collections import deque

from controller.schema import LatencyWindow

SPAN_S = 5.0
CAPACITY = 2048
EMPTY = LatencyWindow()


class WeightedWindow:
    """Latencies of the last ``span_s`` seconds, at most ``capacity`` of them; older ones go first."""

    __slots__ = ("_capacity", "_count", "_samples", "_span_s")

    def __init__(self, span_s: float = SPAN_S, capacity: int = CAPACITY) -> None:
        self._span_s = span_s
        self._capacity = capacity
        self._samples: deque[tuple[float, float, int]] = deque()  # (when_s, latency_ms, how many)
        self._count = 0

    def add(self, now_s: float, latency_ms: float, count: int = 1) -> None:
        """Add ``count`` equal latencies."""
        samples = self._samples
        samples.append((now_s, latency_ms, count))
        self._count += count
        excess = self._count - self._capacity
        while excess > 0:
            when_s, value_ms, oldest = samples[0]
            if oldest > excess:
                samples[0] = (when_s, value_ms, oldest - excess)
                self._count -= excess
                return
            samples.popleft()
            self._count -= oldest
            excess -= oldest

    def summary(self, now_s: float) -> LatencyWindow:
        """Count and percentiles of the window."""
        samples = self._samples
        oldest_s = now_s - self._span_s
        while samples and samples[0][0] < oldest_s:
            self._count -= samples.popleft()[2]
        if not samples:
            return EMPTY
        last = self._count - 1
        if last + 1 == len(samples):  # single samples: no need to count
            ordered = sorted([sample[1] for sample in samples])
            return LatencyWindow(
                count=last + 1,
                p50_ms=ordered[round(0.50 * last)],
                p90_ms=ordered[round(0.90 * last)],
                p99_ms=ordered[round(0.99 * last)],
            )
        ranks = (round(0.50 * last), round(0.90 * last), round(0.99 * last))
        found: list[float] = []
        seen, wanted = 0, ranks[0]
        for value_ms, count in sorted([(value_ms, count) for _, value_ms, count in samples]):
            seen += count
            while wanted < seen:
                found.append(value_ms)
                if len(found) == 3:
                    return LatencyWindow(count=self._count, p50_ms=found[0], p90_ms=found[1], p99_ms=found[2])
                wanted = ranks[len(found)]
        raise AssertionError("the ranks lie below the count")
