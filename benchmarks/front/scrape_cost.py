"""What scraping costs: tokens per second at full load with and without a scrape of ``/metrics`` every 5 s.

    python -m benchmarks.front.scrape_cost          # benchmarks/results/scrape-cost.csv: five minutes

The service with an engine whose step is a sleep (``timed_worker.py``) under more streams than two cores can carry, so that
whatever a scrape takes of the processor is missing for tokens. One load for the whole run; its windows alternate, with and
without, in the order ABBA, so that what drifts cancels. Throughput between such windows differs by per cents, so what a scrape
takes is measured besides as processor time, of all processes, by scrapes one after the other on the idle service.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import results_csv
from benchmarks.client import stream_client
from benchmarks.client.stream_client import ClientRun
from benchmarks.http import http_systems
from benchmarks.http.http_load import HttpLoad, prompts
from benchmarks.http.http_path import KV_BYTES, MODEL_DIR
from benchmarks.http.http_procs import tree, used_s
from benchmarks.http.http_stats import MeasuredSpan, figures
from benchmarks.http.http_systems import EngineArguments, RunningSystem

RESULT = Path(__file__).parents[1] / "results" / "scrape-cost.csv"
COLUMNS = ("what", "number", "tokens_per_s", "ttft_p50_ms", "tpot_p99_ms", "scrape_ms", "cpu_ms_per_scrape", "errors")
EVERY_S = 5.0  # a short period for a Prometheus
PORT = 8211
IDLE_SCRAPES = 50
WARM_S = 10.0


def scrape(url: str) -> float:
    """Ask for the page; return the seconds it took."""
    began_s = time.monotonic()
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        answer.read()
    return time.monotonic() - began_s


class Scrapes:
    """Scrapes in a thread, for the length of a window."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.took_s: list[float] = []

    def _run(self) -> None:
        while not self._ended.is_set():
            self.took_s.append(scrape(self._url))
            self._ended.wait(EVERY_S)

    def __enter__(self) -> "Scrapes":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def idle_cost_ms(service: RunningSystem) -> float:
    """Return the processor time that a scrape takes, in milliseconds: of all processes, above what the idle service uses."""

    def spent_s(busy: bool, for_s: float) -> float:
        before, began_s = tree(service.pid or 0), time.monotonic()
        if busy:
            for _ in range(IDLE_SCRAPES):
                scrape(service.url)
        else:
            time.sleep(for_s)
        took_s = time.monotonic() - began_s
        return sum(used_s(before, tree(service.pid or 0)).values()) - (base_per_s * took_s if busy else 0.0)

    base_per_s = 0.0
    base_per_s = spent_s(busy=False, for_s=10.0) / 10.0
    return 1e3 * spent_s(busy=True, for_s=0.0) / IDLE_SCRAPES


def of_window(load: ClientRun, window: MeasuredSpan) -> ClientRun:
    """Return what a load saw of the requests that ended in a window: how many tokens an event holds may differ between windows."""
    inside = [record for record in load.records if window.begin_s <= record.end_s < window.end_s]
    return replace(load, records=inside)


def windows(service: RunningSystem, pairs: int, window_s: float, streams: int) -> list[dict[str, Any]]:
    """Put the load on the service; return a row for each window.

    Raises:
        RuntimeError: when the client fails.
    """
    load_s = 2 * pairs * window_s
    scenario = HttpLoad("closed", 16, 128, warm_s=WARM_S, window_s=load_s, streams=streams)
    plan = scenario.plan(service.model_id, prompts(MODEL_DIR, 16))
    looks: list[tuple[bool, MeasuredSpan, list[float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        client = stream_client.start(service.url, "/v1/completions", plan, Path(folder) / "requests")
        time.sleep(WARM_S)
        for number in range(2 * pairs):
            scraped = number % 4 in (1, 2)
            begin_s = time.monotonic()
            took_s: list[float] = []
            if scraped:
                with Scrapes(service.url) as scrapes:
                    time.sleep(window_s)
                took_s = scrapes.took_s
            else:
                time.sleep(window_s)
            looks.append((scraped, MeasuredSpan(begin_s, begin_s + window_s), took_s))
        load = stream_client.finish(client, plan.limit_s + 30)
    rows = []
    for number, (scraped, window, took_s) in enumerate(looks):
        found = figures(of_window(load, window), window)
        rows.append(
            {
                "what": "scraped" if scraped else "not scraped",
                "number": number,
                "tokens_per_s": round(found.tokens_per_s, 1),
                "ttft_p50_ms": round(found.ttft_p50_ms or 0.0, 1),
                "tpot_p99_ms": round(found.tpot_p99_ms or 0.0, 2),
                "scrape_ms": round(1e3 * statistics.mean(took_s), 1) if took_s else "",
                "errors": found.errors,
            }
        )
    return rows


def summary(rows: list[dict[str, Any]], cpu_ms: float) -> str:
    """Say what the rows come to."""
    without, with_ = [
        [row["tokens_per_s"] for row in rows if row["what"] == what] for what in ("not scraped", "scraped")
    ]
    ratios = [100 * (b / a - 1) for a, b in zip(without, with_, strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    return (
        f"{statistics.mean(without):.0f} tokens/s without, {statistics.mean(with_):.0f} with a scrape each {EVERY_S:g} s: "
        f"{statistics.mean(ratios):+.2f} % (standard error {error:.2f}, {len(ratios)} pairs); a scrape takes {cpu_ms:.1f} ms of "
        f"processor time, {100 * cpu_ms / 1e3 / EVERY_S:.2f} % of a core"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front.scrape_cost", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="of windows")
    parser.add_argument("--window-s", type=float, default=10.0, help="length of a window")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=15.0, help="step of the timed engine")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    engine = EngineArguments("fairytales-8m", MODEL_DIR, step_ms=args.step_ms, kv_cache_bytes=KV_BYTES)
    with (
        tempfile.TemporaryDirectory() as folder,
        http_systems.start("nestedfp", engine, args.port, Path(folder)) as service,
    ):
        rows = windows(service, args.pairs, args.window_s, args.streams)
        http_systems.settle(service)
        cpu_ms = idle_cost_ms(service)
    rows.append({"what": "idle", "number": 0, "cpu_ms_per_scrape": round(cpu_ms, 2)})
    table = [[row.get(column, "") for column in COLUMNS] for row in rows]
    results_csv.merge(args.output, COLUMNS, 2, table, results_csv.heading(argv))
    print(summary(rows[:-1], cpu_ms))
    return 0


if __name__ == "__main__":
    sys.exit(main())
