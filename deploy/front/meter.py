"""Measures the path of a request: arrival, hand-over to the engine, first byte, later bytes. Pure but for the loop probe.

TTFT counts from the arrival at this process to the first byte written, TPOT between the bytes written: what the client sees,
less the network. An answer in one piece has no first byte before its last; for it the engine's own times count, and the time
before the hand-over is added.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from controller.messages import LatencyWindow, PathStats
from controller.sliding_window import SlidingWindow
from deploy.access.access_log import Access
from deploy.metrics.request_metrics import Answered, RequestMetrics, RequestOutcome, answered, precision_of
from nestedfp.vllm_plugin.frontend import Collected, total
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision

SPAN_S = 5.0
LAG_PERIOD_S = 0.05
LAG_SPAN_S = 1.0
MOST_FINISHED = 1 << 16  # that wait for ``take_finished``, which nobody calls for a plain engine
PAUSED_AFTER_S = 1.0  # a write that has waited for so long waits for a client that does not read


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
    engine: tuple[float, float | None] | None = None
    answer: Answered | None = None


class Passage:
    """One request on its way."""

    __slots__ = (
        "arrived_s",
        "asked",
        "completion_tokens",
        "counts",
        "first_s",
        "id",
        "key",
        "last_s",
        "meter",
        "model",
        "outcome",
        "paused",
        "prompt_tokens",
        "read_tokens",
        "status",
        "submitted_s",
        "tokens",
        "ttft_s",
        "writing_since_s",
    )

    def __init__(self, meter: "PathMeter", arrived_s: float) -> None:
        self.meter = meter
        self.arrived_s = arrived_s
        self.submitted_s: float | None = None
        self.first_s: float | None = None
        self.last_s = 0.0
        self.prompt_tokens = 0  # that the engine was given
        self.read_tokens = 0  # that a tokenizer was given, of prompts that the engine was not; an estimate
        self.completion_tokens = 0  # that it has answered with
        self.tokens = 0  # written, as the latencies count them: one an event where vLLM makes the events
        self.writing_since_s: float | None = None
        self.paused = False
        self.asked = AskedPrecision.AUTO
        self.counts = Collected()
        self.outcome = RequestOutcome.OK
        # For the access log alone.
        self.id: str | None = None
        self.key: str | None = None
        self.model: str | None = None
        self.status: int | None = None  # of a refusal
        self.ttft_s: float | None = None

    def submitted(self) -> None:
        """The engine has the request."""
        if self.submitted_s is None:
            self.submitted_s = self.meter.clock()
            self.meter.handed_over(self.submitted_s - self.arrived_s, self.submitted_s)

    def writing(self) -> None:
        """Bytes are about to be written."""
        self.writing_since_s = self.meter.clock()

    def wrote(self, tokens: int) -> None:
        """So many tokens' bytes have been written."""
        now_s = self.meter.clock()
        # A client that does not read says nothing about the service.
        paused = self.writing_since_s is not None and now_s - self.writing_since_s > PAUSED_AFTER_S
        self.paused = self.paused or paused
        self.writing_since_s = None
        if self.first_s is None:
            self.first_s = now_s
            self.ttft_s = now_s - self.arrived_s
            self.meter.ttft.add(now_s, self.ttft_s * 1e3)
        elif tokens and not paused:
            self.meter.tpot.add(now_s, (now_s - self.last_s) * 1e3 / tokens)
        self.last_s = now_s
        self.tokens += tokens

    def finished(self, engine: tuple[float, float | None] | None = None) -> None:
        """The stream has ended by itself; ``engine`` as in ``Finished``."""
        if self.first_s is not None and not self.paused:
            spread_s = self.last_s - self.first_s
            tpot_s = spread_s / (self.tokens - 1) if self.tokens > 1 else None
            self.meter.judge(self.first_s - self.arrived_s, tpot_s, engine, self.answer)

    def finished_in_one_piece(
        self, first_token_s: float, decode_s: float, tokens: int, engine: tuple[float, float | None] | None = None
    ) -> None:
        """The answer went out in one piece.

        Args:
            first_token_s: from the hand-over to the first token, by the engine's account.
            decode_s: from the first token to the last.
            tokens: of the completion.
            engine: as in ``Finished``.
        """
        now_s = self.meter.clock()
        self.ttft_s = ttft_s = first_token_s + ((self.submitted_s or now_s) - self.arrived_s)
        tpot_s = decode_s / (tokens - 1) if tokens > 1 else None
        self.meter.ttft.add(now_s, ttft_s * 1e3)
        if tpot_s is not None:
            self.meter.tpot.add(now_s, tpot_s * 1e3)
        self.meter.judge(ttft_s, tpot_s, engine, self.answer)

    @property
    def pinned(self) -> bool:
        """Whether the answer must be exact."""
        return self.asked is AskedPrecision.EXACT

    @property
    def answer(self) -> Answered | None:
        """What the request was answered with; None: it was not, not yet, or nobody has told."""
        ok = self.outcome is RequestOutcome.OK and self.counts.whole
        return answered(self.counts, self.asked, self.key) if ok else None

    @property
    def used_tokens(self) -> int:
        """Tokens of prompts and completions, computed and cached, however the request ended."""
        return max(sum(map(sum, self.counts.values())), (self.prompt_tokens or self.read_tokens) + self.answer_tokens)

    @property
    def answer_tokens(self) -> int:
        """Tokens that the engine has answered with, also where vLLM hands them on at the end alone."""
        return max(self.completion_tokens, self.counts.output_tokens)

    def ended(self) -> None:
        """The request has left, however it did."""
        self.meter.left(self)

    def access(self, now_s: float) -> Access:
        """What the access log says of the request, at its end."""
        begun = self.first_s is not None or self.outcome is RequestOutcome.OK
        return Access(
            wall_s=time.time(),
            id=self.id,
            key=self.key,
            model=self.model,
            outcome=self.outcome.value,
            status=self.status or (200 if begun else None),
            asked=self.asked.value,
            precision=None if (answer := self.answer) is None else answer.precision.value,
            tokens=total(self.counts.values()) if self.counts else None,
            ttft_ms=None if self.ttft_s is None else self.ttft_s * 1e3,
            total_ms=(now_s - self.arrived_s) * 1e3,
        )


class PathMeter:
    """All requests of one replica.

    Args:
        clock: seconds, monotonic.
        logs: each takes every request when it has left: the access log, the request's span.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, logs: Sequence[Callable[[Access], None]] = ()
    ) -> None:
        self.clock = clock
        self.logs = tuple(logs)
        self.requests = RequestMetrics()
        self.ttft = SlidingWindow(SPAN_S)
        self.tpot = SlidingWindow(SPAN_S)
        self._waits = SlidingWindow(SPAN_S)
        self._deliveries = SlidingWindow(SPAN_S)
        self._open: set[Passage] = set()
        self._in_path = 0
        self._lags: deque[tuple[float, float]] = deque()
        self._finished: deque[Finished] = deque(maxlen=MOST_FINISHED)

    def arrive(self, arrived_s: float) -> Passage:
        """A request has arrived; each wants an ``ended``."""
        passage = Passage(self, arrived_s)
        self._open.add(passage)
        self._in_path += 1
        return passage

    def handed_over(self, waited_s: float, now_s: float) -> None:
        """The engine has one more of the requests."""
        self._in_path -= 1
        self._waits.add(now_s, waited_s * 1e3)

    def delivered(self, took_s: float) -> None:
        """Outputs of the engine have been written so long after it had made them."""
        self._deliveries.add(self.clock(), max(0.0, took_s) * 1e3)

    def left(self, passage: Passage) -> None:
        """A request has ended."""
        self._open.discard(passage)
        if (answer := passage.answer) is not None:
            self.requests.answered(answer)
        self.requests.left(precision_of(passage.counts), passage.pinned, passage.outcome)
        if self.logs:
            access = passage.access(self.clock())
            for log in self.logs:
                log(access)
        if passage.submitted_s is None:
            self._in_path -= 1

    def judge(
        self,
        ttft_s: float,
        tpot_s: float | None,
        engine: tuple[float, float | None] | None = None,
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
        self._lags.append((self.clock(), lag_s * 1e3))

    def windows(self, now_s: float) -> tuple[LatencyWindow, LatencyWindow]:
        """Return the windows of TTFT and TPOT."""
        return self.ttft.summary(now_s), self.tpot.summary(now_s)

    def stats(self, now_s: float) -> PathStats:
        """Return what stands where on the path."""
        while self._lags and self._lags[0][0] < now_s - LAG_SPAN_S:
            self._lags.popleft()
        waits, deliveries = self._waits.summary(now_s), self._deliveries.summary(now_s)
        return PathStats(
            in_path=self._in_path,
            wait_p90_ms=waits.p90_ms,
            delivery_p90_ms=deliveries.p90_ms if deliveries.count else None,
            loop_lag_ms=max((lag_ms for _, lag_ms in self._lags), default=0.0),
            open_streams=len(self._open),
            paused_streams=sum(
                passage.writing_since_s is not None and now_s - passage.writing_since_s > PAUSED_AFTER_S
                for passage in self._open
            ),
        )

    async def probe(self) -> None:
        """Measure the lag of the running event loop for ever."""
        while True:
            asked_s = self.clock()
            await asyncio.sleep(LAG_PERIOD_S)
            self.lag(max(0.0, self.clock() - asked_s - LAG_PERIOD_S))
