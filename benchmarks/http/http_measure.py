"""A load of the HTTP benchmark, and what a system does with it: figures of the client, processor time of its processes."""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.http.http_procs import path_s
from benchmarks.http.http_systems import RunningSystem
from loadtest.calibrate import tokens_between
from loadtest.report.error_kinds import error_kinds, most_frequent
from loadtest.sender.dispatch import run_plan
from loadtest.sender.plan import CUT, PlannedRequest, SendPlan
from workload.percentiles import percentiles
from workload.records import RequestRecord
from workload.synthetic import synthetic_trace

REQUESTS = 8192  # of a closed loop, which begins again then; prefix caching is off all the same
SEED = 20
REQUEST_LIMIT_S = 60.0
# Of requests begun in the window and answered in full; errors are of the whole load.
MEASURED = ("tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "path_cpu_us_per_token", "requests", "errors")


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """One load. Closed loop with ``streams``, open loop with ``rate_per_s``.

    Attributes:
        warm_s: from the start to the window that is measured.
        window_s: what is measured.
        drain_s: for which requests of the window may last beyond it.
    """

    name: str
    prompt_tokens: int
    output_tokens: int
    warm_s: float
    window_s: float
    streams: int = 0
    rate_per_s: float = 0.0
    drain_s: float = 10.0

    def plan(self, url: str, model_id: str, records: Path, run: int = 0) -> SendPlan:
        """Return what a sender sends.

        Args:
            records: the file that it writes.
            run: number of the sender, where several send at once; their prompts differ.
        """
        load_s = self.warm_s + self.window_s
        poisson = () if self.streams else synthetic_trace(SEED + run, load_s, self.rate_per_s, bursts=False)
        at_s = [0.0] * REQUESTS if self.streams else [arrival.at_s for arrival in poisson]
        # A closed loop's first answers are of all lengths, so that its streams do not end all at once ever after.
        outputs = [1 + self.output_tokens * stream // self.streams for stream in range(self.streams)]
        outputs += [self.output_tokens] * (len(at_s) - len(outputs))
        return SendPlan(
            kind="closed" if self.streams else "open",
            policy="plain",
            run=run,
            url=url,
            model=model_id,
            requests=tuple(
                PlannedRequest(at_s=at, prompt_tokens=self.prompt_tokens, output_tokens=output)
                for at, output in zip(at_s, outputs, strict=True)
            ),
            duration_s=load_s + self.drain_s if self.streams else load_s,
            drain_s=self.drain_s,
            users=self.streams or 1,
            request_timeout_s=REQUEST_LIMIT_S,
            seed=SEED,
            records_path=records,
        )


def measure(system: RunningSystem, load: HttpLoad, senders: int = 1) -> dict[str, Any]:
    """Run a load, as many times as there are senders, and return its figures by column.

    Raises:
        RuntimeError: not one request of the window was answered.
        loadtest.errors.LoadtestError: a sender failed.
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
