"""From what a load client saw to the figures of a row. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.client.stream_client import ClientRun, Record
from workload.percentiles import percentiles


@dataclass(frozen=True, slots=True)
class MeasuredSpan:
    """A span of ``time.monotonic`` in which a service is measured: after its ramp, before its drain."""

    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Figures:
    """Latencies are None where no request of the window ended well."""

    tokens_per_s: float
    tokens: float  # of the window
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    requests: int  # begun in the window and answered in full
    tokens_per_event: float  # above 1 where the server sends several tokens at a time
    errors: str  # of the whole load, such as "http_503:4 closed:1"; empty: none


def ttft_ms(record: Record) -> float:
    """Time to first token, counted from when the request was due."""
    return (record.first_s - record.due_s) * 1e3


def tpot_ms(record: Record) -> float:
    """Time per output token after the first."""
    return (record.last_s - record.first_s) * 1e3 / (record.tokens - 1)


def errors_of(records: Iterable[Record]) -> str:
    """Name what went wrong, the most frequent first."""
    kinds = Counter(record.kind for record in records if record.kind != "ok")
    return " ".join(f"{kind}:{count}" for kind, count in kinds.most_common())


def figures(load: ClientRun, window: MeasuredSpan) -> Figures:
    """Return a window's figures.

    Events are counted by when they came. A server may put several tokens into one event, so that events become tokens by the
    ratio seen in the answers that came in full, whose tokens the server's ``usage`` tells.
    """
    whole = [record for record in load.records if record.kind == "ok" and record.events]
    ratio = sum(r.tokens for r in whole) / max(1, sum(r.events for r in whole))
    inside = sum(events for at_s, events in load.bins if window.begin_s <= at_s < window.end_s)
    begun = [record for record in whole if window.begin_s <= record.due_s < window.end_s]
    ttfts = percentiles(ttft_ms(record) for record in begun)
    tpots = percentiles(tpot_ms(record) for record in begun if record.tokens > 1)
    return Figures(
        tokens_per_s=inside * ratio / window.seconds,
        tokens=inside * ratio,
        ttft_p50_ms=ttfts.p50,
        ttft_p99_ms=ttfts.p99,
        tpot_p50_ms=tpots.p50,
        tpot_p99_ms=tpots.p99,
        requests=len(begun),
        tokens_per_event=ratio,
        errors=errors_of(load.records),
    )
