"""A sliding window of latencies: any number of samples in constant memory. The replicas' and the simulator's. Pure.

A histogram with buckets that are 1 % apart (the idea of HdrHistogram and DDSketch: a relative error that holds at every
magnitude), kept for each slot of 100 ms, so that what is too old is taken out slot by slot. A window of single samples
would hold a fraction of a second of a busy GPU, and sort it for every snapshot.

A percentile is told as the bucket's latest sample: exact where a bucket's samples are equal, and never off by more than 1 %.
"""

import math
from array import array
from collections import deque

import numpy as np

from controller.messages import LatencyWindow

SPAN_S = 5.0
SLOT_S = 0.1
LOWEST_MS = 0.05  # what is below counts as the first bucket
HIGHEST_MS = 3.6e6
_PER_LOG = 1 / math.log(1.01)
_BUCKETS = 2 + int(math.log(HIGHEST_MS / LOWEST_MS) * _PER_LOG)
_EMPTY = LatencyWindow()


class SlidingWindow:
    """Latencies of the last ``span_s`` seconds of the caller's clock, which comes with every call; to within a slot."""

    __slots__ = ("_closed", "_counts", "_latest_ms", "_newest", "_slot", "_slots_kept")

    def __init__(self, span_s: float = SPAN_S) -> None:
        self._slots_kept = round(span_s / SLOT_S) + 1
        self._slot = -1  # of the newest samples
        self._newest: dict[int, int] = {}  # bucket -> samples
        self._closed: deque[tuple[int, dict[int, int]]] = deque()  # earlier slots, oldest first
        self._counts = np.zeros(_BUCKETS, dtype=np.int64)  # samples of the closed slots
        self._latest_ms = array("d", bytes(8 * _BUCKETS))

    def add(self, now_s: float, latency_ms: float, count: int = 1) -> None:
        """Add ``count`` equal latencies. Called for every token: what can wait for the end of the slot does."""
        slot = int(now_s / SLOT_S + 1e-6)
        if slot > self._slot:
            self._turn(slot)
        bucket = 0
        if latency_ms > LOWEST_MS:
            bucket = 1 + int(math.log(latency_ms / LOWEST_MS) * _PER_LOG)
            if bucket >= _BUCKETS:
                bucket = _BUCKETS - 1
        newest = self._newest
        newest[bucket] = newest.get(bucket, 0) + count
        self._latest_ms[bucket] = latency_ms

    def summary(self, now_s: float) -> LatencyWindow:
        """Count and percentiles of the window."""
        slot = int(now_s / SLOT_S + 1e-6)
        if slot > self._slot:
            self._turn(slot)
        counts = self._counts
        if self._newest:
            counts = counts.copy()
            counts[list(self._newest)] += list(self._newest.values())
        up_to = np.cumsum(counts)
        total = int(up_to[-1])
        if total == 0:
            return _EMPTY
        last = total - 1
        ranks = (round(0.50 * last), round(0.90 * last), round(0.99 * last))  # nearest rank
        p50, p90, p99 = np.searchsorted(up_to, ranks, side="right").tolist()
        latest_ms = self._latest_ms
        return LatencyWindow(count=total, p50_ms=latest_ms[p50], p90_ms=latest_ms[p90], p99_ms=latest_ms[p99])

    def _turn(self, slot: int) -> None:
        """Close the newest slot, and forget those that are too old."""
        counts, closed = self._counts, self._closed
        if self._newest:
            closed.append((self._slot, self._newest))
            counts[list(self._newest)] += list(self._newest.values())
            self._newest = {}
        self._slot = slot
        while closed and closed[0][0] <= slot - self._slots_kept:
            gone = closed.popleft()[1]
            counts[list(gone)] -= list(gone.values())
