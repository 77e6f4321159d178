"""Puts one load on one system and returns what it did: figures of the client, processor time of the system's processes."""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.http.http_load import HttpLoad
from benchmarks.http.http_procs import path_s, tree, used_s
from benchmarks.http.http_systems import RunningSystem
from loadtest.calibrate import tokens_between
from loadtest.report.error_kinds import error_kinds, most_frequent
from loadtest.sender.dispatch import run_plan
from loadtest.sender.plan import CUT, SendPlan
from workload.percentiles import Percentiles, percentiles
from workload.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one system did in the window of one load."""

    seconds: float
    tokens: float
    ttft_ms: Percentiles  # of requests begun in the window and answered in full
    tpot_ms: Percentiles
    tokens_per_chunk: float  # above 1 where the server sends several tokens at a time
    requests: int
    errors: str  # of the whole load, the most frequent first; empty: none
    spent_s: dict[str, float]  # processor time by role

    def us_per_token(self, seconds: float) -> float | None:
        return seconds * 1e6 / self.tokens if self.spent_s and self.tokens else None

    @property
    def path_us_per_token(self) -> float | None:
        """Processor time of all processes but the engine's, per token."""
        return self.us_per_token(path_s(self.spent_s))

    def by_role(self) -> str:
        """Return the processor time per token of each role, the largest first."""
        parts = {role: self.us_per_token(seconds) or 0.0 for role, seconds in self.spent_s.items()}
        return " ".join(f"{role}:{us:.1f}" for role, us in sorted(parts.items(), key=lambda p: -p[1]) if us >= 0.05)


def measure(system: RunningSystem, load: HttpLoad, senders: int = 1) -> Measurement:
    """Run a load, as many times as there are senders, and return its figures.

    Raises:
        RuntimeError: not one request of the window was answered.
        loadtest.errors.DispatchError: a sender failed.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(senders) as pool:
        plans = [load.plan(system.url, system.model_id, Path(folder) / f"{n}.jsonl", n) for n in range(senders)]
        begun: list[Future[float]] = [Future() for _ in plans]
        sent = [pool.submit(_send, plan, each) for plan, each in zip(plans, begun, strict=True)]
        begin_s = max(each.result() for each in begun) + load.warm_s
        time.sleep(max(0.0, begin_s - time.monotonic()))
        begin_s, before = time.monotonic(), tree(system.pid)
        time.sleep(load.window_s)
        end_s, after = time.monotonic(), tree(system.pid)
        records = [record for each in sent for record in each.result()]
    found = figures(records, begin_s, end_s)
    if not found.requests:
        raise RuntimeError(f"{load.name}: no request was answered: {found.errors or 'none began in the window'}")
    return replace(found, spent_s=used_s(before, after))


def _send(plan: SendPlan, begun: "Future[float]") -> list[RequestRecord]:
    """Send a plan; tell when it begins, by ``time.monotonic``, and return its requests by the same clock."""

    def tick(elapsed_s: float, _: object) -> None:
        if not begun.done():
            begun.set_result(time.monotonic() - elapsed_s)

    try:
        records = run_plan(plan, tick)
    except Exception as error:
        if not begun.done():
            begun.set_exception(error)
        raise
    return [each.model_copy(update={"intended_s": begun.result() + each.intended_s}) for each in records]


def figures(records: Sequence[RequestRecord], begin_s: float, end_s: float) -> Measurement:
    """Return the figures of a window [begin_s, end_s) of the records' clock, without processor time."""
    whole = [record for record in records if record.error is None]
    begun = [record for record in whole if begin_s <= record.intended_s < end_s]
    wrong = [record.error for record in records if record.error is not None and record.error != CUT]
    return Measurement(
        seconds=end_s - begin_s,
        tokens=tokens_between(records, begin_s, end_s),
        ttft_ms=percentiles(record.ttft_ms for record in begun if record.ttft_ms is not None),
        tpot_ms=percentiles(record.tpot_ms for record in begun if record.tpot_ms is not None),
        tokens_per_chunk=sum(r.output_tokens for r in whole) / max(1, sum(len(r.chunk_ms) for r in whole)),
        requests=len(begun),
        errors=most_frequent(error_kinds(wrong)),
        spent_s={},
    )
