"""Puts one load on one system and returns what it did: figures of the client, processor time of the system's processes."""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.http.http_load import HttpLoad
from benchmarks.http.http_procs import path_s
from benchmarks.http.http_systems import RunningSystem
from loadtest.calibrate import tokens_between
from loadtest.report.error_kinds import error_kinds, most_frequent
from loadtest.sender.dispatch import run_plan
from loadtest.sender.plan import CUT, SendPlan
from workload.percentiles import percentiles
from workload.records import RequestRecord

# Of requests begun in the window and answered in full; errors are of the whole load.
MEASURED = ("tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "path_cpu_us_per_token", "requests", "errors")


def measure(system: RunningSystem, load: HttpLoad, senders: int = 1) -> dict[str, Any]:
    """Run a load, as many times as there are senders, and return its figures by column.

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
        begin_s, before = time.monotonic(), path_s(system.pid)
        time.sleep(load.window_s)
        end_s, after = time.monotonic(), path_s(system.pid)
        records = [record for each in sent for record in each.result()]
    found = figures(records, begin_s, end_s, sum(used_s - before.get(pid, 0.0) for pid, used_s in after.items()))
    if not found["requests"]:
        raise RuntimeError(f"{load.name}: no request was answered: {found['errors'] or 'none began in the window'}")
    return found


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


def figures(records: Sequence[RequestRecord], begin_s: float, end_s: float, spent_s: float) -> dict[str, Any]:
    """Return the figures of a window [begin_s, end_s) of the records' clock, in which the path has used so much processor time."""
    begun = [record for record in records if record.error is None and begin_s <= record.intended_s < end_s]
    wrong = [record.error for record in records if record.error is not None and record.error != CUT]
    tokens = tokens_between(records, begin_s, end_s)
    ttft_ms = percentiles(record.ttft_ms for record in begun if record.ttft_ms is not None)
    tpot_ms = percentiles(record.tpot_ms for record in begun if record.tpot_ms is not None)
    values = (
        tokens / (end_s - begin_s),
        ttft_ms.p50,
        ttft_ms.p99,
        tpot_ms.p50,
        spent_s * 1e6 / tokens if tokens else None,
    )
    shown = ["" if value is None else f"{value:.2f}" for value in values]
    return dict(zip(MEASURED, [*shown, len(begun), most_frequent(error_kinds(wrong))], strict=True))
