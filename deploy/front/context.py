"""The request context: who asks, for what, and how far it has come, from the arrival to the last byte; and the sum of them all.

TTFT counts from the arrival at this process to the first byte written, TPOT between the bytes written: what the client sees,
less the network. An answer in one piece has no first byte before its last; for it the engine's own times count, and the time
before the hand-over is added.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from controller.messages import LatencyWindow, PathStats
from controller.sliding_window import SlidingWindow
from deploy.access.admission import NoRoom, Place
from deploy.front.replies import Refused
from deploy.metrics.request_metrics import Answered, RequestMetrics, RequestOutcome, answered
from nestedfp.vllm_plugin.frontend import Collected, total
from nestedfp.vllm_plugin.scheduling.accounting import TokenCounts
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision
from workload.slo import USUAL_SLO

if TYPE_CHECKING:
    from deploy.front.handover import GenerateCall

SPAN_S = 5.0
LAG_PERIOD_S = 0.05
LAG_SPAN_S = 1.0
PAUSED_AFTER_S = 1.0  # a write that has waited for so long waits for a client that does not read


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request of a replica; made by ``PathMeter.arrive``, wants one ``PathMeter.left``."""

    meter: "PathMeter"
    arrived_s: float  # all times but those of the engine: of the meter's clock
    # the request
    id: str | None = None
    key: str | None = None  # name of its key's holder
    model: str | None = None
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body_bytes: int = 0
    given: dict[str, Any] = field(default_factory=dict)  # the fields that it has, by name
    asked: AskedPrecision = AskedPrecision.AUTO
    plain: bool = False  # it is streamed by this front
    notes: list[tuple[bytes, bytes]] = field(default_factory=list)  # headers of its answer
    # its way to the engine
    place: Place | None = None  # in the replica, settled when a prompt is tokenized; None: nobody counts it
    refusal: Callable[[NoRoom], Refused] = lambda no_room: Refused(429, str(no_room))
    reach_by_s: float | None = None  # its queue deadline: by then the engine must have it; None: as long as it takes
    late: Callable[[], Refused] = lambda: Refused(503, "late")  # makes the refusal of a request whose time is up
    priority: int = 0  # among the engine's requests: the lower, the earlier
    calls: list["GenerateCall"] = field(default_factory=list)  # of the engine, that nobody has made yet
    # in the engine
    counts: Collected = field(default_factory=Collected)
    submitted_s: float | None = None
    constrained: bool = False  # by a grammar, which may turn out to have no way on
    # A refusal, or what the engine raised: vLLM's streams make an event of it that says less.
    failed: Exception | None = None
    finished_outputs: list[Any] = field(default_factory=list)  # the last of each sequence that vLLM's own code consumes
    # tokens
    estimated_tokens: int = 0  # of its prompts, before they were tokenized
    read_tokens: int = 0  # that a tokenizer was given, of prompts that the engine was not; an estimate
    prompt_tokens: int = 0  # that the engine was given
    completion_tokens: int = 0  # that it has answered with
    # its answer
    begun: bool = False  # bytes of it are on their way
    writing_since_s: float | None = None
    first_s: float | None = None
    last_s: float = 0.0
    written_tokens: int = 0  # as the latencies count them: one an event where vLLM makes the events
    ttft_s: float | None = None
    paused: bool = False
    outcome: RequestOutcome = RequestOutcome.OK
    status: int | None = None  # of a refusal

    # -- its way to the engine -----------------------------------------------------------------------------------------

    def tokenized(self, prompt: Any, params: Any) -> None:
        """A prompt has become tokens, and the engine is to be called with it.

        Raises:
            Refused: there is no room for what the request turns out to be.
        """
        most = params.max_tokens
        if self.place is None or most is None:
            return
        try:
            self.place.settle(prompt_tokens_of(prompt), most)
        except NoRoom as no_room:
            self.read_tokens = 0  # nothing came of it
            self.failed = self.refusal(no_room)
            raise self.failed from None

    @property
    def left_s(self) -> float | None:
        """How long the request may still wait in front of the engine; None: as long as it takes, since a part of it is there."""
        if self.reach_by_s is None or self.submitted_s is not None:
            return None
        return max(0.0, self.reach_by_s - self.meter.clock())

    async def hands_over(self, grammars: Any, params: Any) -> None:
        """The engine is about to be given a prompt, whose grammar is tried first for as long as the request may wait.

        Raises:
            Refused: the grammar is none that the engine can use, or nobody could find out in time.
            Exception: the request's queue deadline is up, or another prompt of it has failed.
        """
        if grammars is not None:
            await grammars.check(params, self.left_s)
        if self.failed is None and self.left_s == 0.0:
            self.failed = self.late()
        if self.failed is not None:
            raise self.failed

    def submitted(self, prompt: Any = None) -> None:
        """The engine has the request, and this prompt of it."""
        self.prompt_tokens += prompt_tokens_of(prompt)
        if self.submitted_s is None:
            self.submitted_s = self.meter.clock()
            self.meter.handed_over(self.submitted_s - self.arrived_s, self.submitted_s)

    # -- its answer ----------------------------------------------------------------------------------------------------

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
        self.written_tokens += tokens

    def finished(self) -> None:
        """The stream has ended by itself."""
        if self.first_s is not None and not self.paused:
            spread_s, tokens = self.last_s - self.first_s, self.written_tokens
            tpot_s = spread_s / (tokens - 1) if tokens > 1 else None
            self.meter.judge(self.first_s - self.arrived_s, tpot_s, self.answer)

    def observe(self) -> None:
        """The answer went out in one piece: take its latencies from the engine's account of its slowest sequence."""
        known = [output.metrics for output in self.finished_outputs if output.metrics is not None]
        if not known:
            return
        slowest, now_s = max(known, key=lambda metrics: metrics.first_token_latency), self.meter.clock()
        tokens = slowest.num_generation_tokens
        self.ttft_s = ttft_s = slowest.first_token_latency + ((self.submitted_s or now_s) - self.arrived_s)
        tpot_s = (slowest.last_token_ts - slowest.first_token_ts) / (tokens - 1) if tokens > 1 else None
        self.meter.ttft.add(now_s, ttft_s * 1e3)
        if tpot_s is not None:
            self.meter.tpot.add(now_s, tpot_s * 1e3)
        self.meter.judge(ttft_s, tpot_s, self.answer)

    # -- its account ---------------------------------------------------------------------------------------------------

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

    def access(self, now_s: float) -> dict[str, Any]:
        """What the access log says of the request, at its end; what is not known is None."""
        begun = self.first_s is not None or self.outcome is RequestOutcome.OK
        counts = total(self.counts.values()) if self.counts else None
        tokens = dict.fromkeys(TokenCounts._fields) if counts is None else counts._asdict()
        del tokens["kv_fp8"]  # no count of tokens; the precision tells it
        return {
            "time": time.time(),  # since 1970, when it left
            "id": self.id,
            "key": self.key,
            "model": self.model,
            "outcome": self.outcome.value,
            "status": self.status or (200 if begun else None),
            "asked": self.asked.value,
            "precision": None if (answer := self.answer) is None else answer.precision.value,
            **{f"{name}_tokens": value for name, value in tokens.items()},
            "ttft_ms": None if self.ttft_s is None else round(self.ttft_s * 1e3, 1),
            "total_ms": round((now_s - self.arrived_s) * 1e3, 1),
        }


# Of the present task: vLLM's serving objects, which call the engine and the tokenizer, know nothing of it.
CONTEXT: ContextVar[RequestContext | None] = ContextVar("nestedfp_request", default=None)


def prompt_tokens_of(prompt: Any) -> int:
    """Return how many tokens a prompt has, as vLLM's serving objects give it to the engine; 0 where it does not say."""
    ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else None
    return len(ids or ())


class PathMeter:
    """All requests of one replica; ``log`` takes each when it has left."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, log: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self.clock = clock
        self.log = log
        self.slo = USUAL_SLO  # that requests are held against when they end by themselves
        self.slo_evaluated = self.within_slo = 0  # how many that were, and of them those that met both objectives
        self.requests = RequestMetrics()
        self.ttft = SlidingWindow(SPAN_S)
        self.tpot = SlidingWindow(SPAN_S)
        self._waits = SlidingWindow(SPAN_S)
        self._deliveries = SlidingWindow(SPAN_S)
        self._lags = SlidingWindow(LAG_SPAN_S)
        self._open: set[RequestContext] = set()
        self._in_path = 0

    def arrive(self, arrived_s: float) -> RequestContext:
        """A request has arrived; each wants one ``left``."""
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
        """A request has left, however it did."""
        self._open.discard(request)
        if (answer := request.answer) is not None:
            self.requests.answered(answer)
        self.requests.outcomes.labels(request.outcome).inc()
        if self.log is not None:
            self.log(request.access(self.clock()))
        if request.submitted_s is None:
            self._in_path -= 1

    def judge(self, ttft_s: float, tpot_s: float | None, answer: Answered | None = None) -> None:
        """A request has ended by itself. ``tpot_s`` is None for an answer of one token, ``answer`` where it is not told."""
        self.requests.ttft.observe(ttft_s)
        if tpot_s is not None:
            self.requests.tpot.observe(tpot_s)
        self.slo_evaluated += 1
        if self.slo.met(ttft_s * 1e3, None if tpot_s is None else tpot_s * 1e3):
            self.within_slo += 1
            if answer is not None:
                self.requests.within_slo.labels(*answer).inc()

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
