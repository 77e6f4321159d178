"""Sums up the requests of a replica: latencies, delays of the path, what became of them. Pure but for the loop probe."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from controller.messages import LatencyWindow, PathStats
from controller.sliding_window import SlidingWindow
from deploy.access.access_log import Access
from deploy.front.context import PAUSED_AFTER_S, EngineTimes, RequestContext
from deploy.metrics.request_metrics import Answered, RequestMetrics, precision_of

SPAN_S = 5.0
LAG_PERIOD_S = 0.05
LAG_SPAN_S = 1.0
MOST_FINISHED = 1 << 16  # that wait for ``take_finished``, which nobody calls for a plain engine


class Finished(NamedTuple):
    """Latencies of a request that ended by itself, in seconds.

    Attributes:
        ttft_s: of the whole path.
        tpot_s: the same; None for an answer of one token.
        engine: both of the engine alone, by its own account; None: not told.
        answer: what it was answered with; None: not told.
    """

    ttft_s: float
    tpot_s: float | None
    engine: EngineTimes | None = None
    answer: Answered | None = None


class PathMeter:
    """All requests of one replica.

    Args:
        clock: seconds, monotonic.
        log: takes every request when it has left; None: nobody does.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, log: Callable[[Access], None] | None = None
    ) -> None:
        self.clock = clock
        self.log = log
        self.requests = RequestMetrics()
        self.ttft = SlidingWindow(SPAN_S)
        self.tpot = SlidingWindow(SPAN_S)
        self._waits = SlidingWindow(SPAN_S)
        self._deliveries = SlidingWindow(SPAN_S)
        self._lags = SlidingWindow(LAG_SPAN_S)
        self._open: set[RequestContext] = set()
        self._in_path = 0
        self._finished: deque[Finished] = deque(maxlen=MOST_FINISHED)

    def arrive(self, arrived_s: float) -> RequestContext:
        """A request has arrived; each wants an ``ended``."""
        request = RequestContext(self, arrived_s)
        self._open.add(request)
        self._in_path += 1
        return request

    def handed_over(self, waited_s: float, now_s: float) -> None:
        """The engine has one more of the requests."""
        self._in_path -= 1
        self._waits.add(now_s, waited_s * 1e3)

    def delivered(self, took_s: float) -> None:
        """Outputs of the engine have been written so long after it had made them."""
        self._deliveries.add(self.clock(), max(0.0, took_s) * 1e3)

    def left(self, request: RequestContext) -> None:
        """A request has ended."""
        self._open.discard(request)
        if (answer := request.answer) is not None:
            self.requests.answered(answer)
        self.requests.left(precision_of(request.counts), request.pinned, request.outcome)
        if self.log is not None:
            self.log(request.access(self.clock()))
        if request.submitted_s is None:
            self._in_path -= 1

    def judge(
        self,
        ttft_s: float,
        tpot_s: float | None,
        engine: EngineTimes | None = None,
        answer: Answered | None = None,
    ) -> None:
        """Keep the latencies of a request that ended by itself until ``take_finished``; arguments as in ``Finished``."""
        self._finished.append(Finished(ttft_s, tpot_s, engine, answer))
        self.requests.judged(ttft_s, tpot_s)

    def take_finished(self) -> list[Finished]:
        """Return the latencies of requests that ended since the last call."""
        finished = list(self._finished)
        self._finished.clear()
        return finished

    def lag(self, lag_s: float) -> None:
        """The event loop came back so much later than asked."""
        self._lags.add(self.clock(), lag_s * 1e3)

    def windows(self, now_s: float) -> tuple[LatencyWindow, LatencyWindow]:
        """Return the windows of TTFT and TPOT."""
        return self.ttft.summary(now_s), self.tpot.summary(now_s)

    def stats(self, now_s: float) -> PathStats:
        """Return what stands where on the path."""
        waits, deliveries = self._waits.summary(now_s), self._deliveries.summary(now_s)
        return PathStats(
            in_path=self._in_path,
            wait_p90_ms=waits.p90_ms,
            delivery_p90_ms=deliveries.p90_ms if deliveries.count else None,
            loop_lag_ms=self._lags.summary(now_s).p99_ms,  # of at most twenty: the largest
            open_streams=len(self._open),
            paused_streams=sum(
                request.writing_since_s is not None and now_s - request.writing_since_s > PAUSED_AFTER_S
                for request in self._open
            ),
        )

    async def probe(self) -> None:
        """Measure the lag of the running event loop for ever."""
        while True:
            asked_s = self.clock()
            await asyncio.sleep(LAG_PERIOD_S)
            self.lag(max(0.0, self.clock() - asked_s - LAG_PERIOD_S))
