"""Time from a directive to the acknowledgement of the last replica's engine, on an idle service or under streaming load.

    python -m benchmarks.control.directive_latency --config deploy/configs/demo-two-replicas.yaml
    python -m benchmarks.control.directive_latency --url http://127.0.0.1:8000 --streams 256     # admin key in NESTEDFP_ADMIN_KEY

Directives and streams share the replica's event loop. An engine acknowledges when it has put the directive in force, so that its
next step runs under it. Writes one line per directive: ``directive,replicas,last_ack_ms,http_ms`` (http_ms: the whole request
to the admin route).
"""

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks import results_csv
from benchmarks.http.http_load import HttpLoad
from loadtest.errors import LoadtestError
from loadtest.sender.background import BackgroundLoad
from loadtest.service.process import serve_command, started_service

RESULT = Path(__file__).parents[1] / "results" / "directive-latency.csv"


def measure(url: str, key: str, count: int) -> list[dict[str, float | int | str]]:
    """Switch the service ``count`` times between FP8 and FP16; return a row for each switch.

    Raises:
        RuntimeError: when a replica did not acknowledge within the controller's second.
    """
    rows: list[dict[str, float | int | str]] = []
    with httpx.Client(base_url=url, timeout=10, trust_env=False) as client:
        for mode in itertools.islice(itertools.cycle(("fp8", "fp16")), count + 4):
            began_s = time.perf_counter()
            answer = client.post(
                "/admin/directive", json={"mode": mode}, headers={"Authorization": f"Bearer {key}"}
            ).raise_for_status()
            http_ms = (time.perf_counter() - began_s) * 1e3
            status = answer.json()
            settled = status["broadcast"]
            if settled is None or settled["epoch"] != status["epoch"]:
                raise RuntimeError(f"not every replica acknowledged epoch {status['epoch']}: {status}")
            rows.append(
                {
                    "directive": mode,
                    "replicas": settled["replicas"],
                    "last_ack_ms": round(settled["last_ack_ms"], 3),
                    "http_ms": round(http_ms, 3),
                }
            )
            time.sleep(0.15)
    return rows[4:]  # the first ones open connections


@contextlib.contextmanager
def streaming(url: str, streams: int, span_s: float) -> Iterator[None]:
    """Keep so many streams of 128 tokens open for the length of the block; none where ``streams`` is 0."""
    if not streams:
        yield
        return
    with httpx.Client(base_url=url, timeout=10, trust_env=False) as client:
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
    load = HttpLoad("streams", 16, 128, warm_s=0, window_s=span_s, streams=streams)
    with (
        tempfile.TemporaryDirectory() as folder,
        BackgroundLoad(load.plan(url, model, Path(folder) / "requests.jsonl")) as sent,
    ):
        sent.start_s()
        time.sleep(3.0)
        yield


def main(argv: list[str] | None = None) -> int:
    """Command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control.directive_latency", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("deploy/configs/demo-two-replicas.yaml"))
    parser.add_argument("--url", help="a service that runs already, instead of --config")
    parser.add_argument("--streams", type=int, default=0, help="open at the same time (default: %(default)s)")
    parser.add_argument("--count", type=int, default=100, help="directives to time (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    log = Path(tempfile.gettempdir()) / "nestedfp-directive-latency.log"
    try:
        with contextlib.ExitStack() as stack:
            if args.url:
                url, key = args.url, os.environ.get("NESTEDFP_ADMIN_KEY", "")
            else:
                starting = started_service(serve_command(args.config), log, 600.0, lambda _: None)
                url, key, _ = stack.enter_context(starting)
            stack.enter_context(streaming(url, args.streams, args.count))
            rows = measure(url, key, args.count)
    except (LoadtestError, httpx.HTTPError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    results_csv.write(args.out, list(rows[0]), [list(row.values()) for row in rows], results_csv.heading(argv))
    for column in ("last_ack_ms", "http_ms"):
        values = sorted(float(row[column]) for row in rows)
        print(f"{column}: p50 {statistics.median(values):.1f}, p99 {values[round(0.99 * (len(values) - 1))]:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
