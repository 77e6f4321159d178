"""What the path from token to client costs: the real service and ``vllm serve`` under the same loads.

    python -m benchmarks.http.http_path                                  # CPU: benchmarks/results/http-path.csv
    python -m benchmarks.http.http_path --gpu --models llama-8b          # one GPU: benchmarks/results/h100-http.csv
    python -m benchmarks.http.http_path --gpu --models llama-8b --systems nestedfp --replicas 1,2,4,8    # as many GPUs

On a CPU the engine is vLLM with a worker whose step is a sleep (``timed_worker.py``), so that tokens come at a known speed and the
processor is left to the path. On a GPU engines are published shapes with random weights. All systems run the same engine
arguments, one front process a replica, the same requests and arrival times; one sender of the load test a replica sends them.
``path_cpu_us_per_token`` is the processor time of all processes of a system but its engine. Rows are written as they
come, so that a run may be cut into pieces.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import results_csv
from benchmarks.engine.engine_shapes import SHAPES, model_folder
from benchmarks.http import http_systems
from benchmarks.http.http_load import HttpLoad
from benchmarks.http.http_measure import Measurement, measure
from benchmarks.http.http_systems import ROOT, EngineArguments, RunningSystem
from loadtest.errors import LoadtestError
from loadtest.service.admin import DirectiveName, ServiceClient

RESULTS = Path(__file__).parents[1] / "results"
SYSTEMS = ("nestedfp", "vllm_serve")
MODES: tuple[DirectiveName, ...] = ("fp16", "fp8")
DIRECTIVE_LIMIT_S = 60.0  # and for the requests that a load has left behind
MODEL_DIR = ROOT / "models" / "fairytales-8m"
KV_BYTES = 256 << 20  # 64,000 tokens of the demonstration's model
STREAMS = 256
CPU_LOADS = (
    HttpLoad("unloaded", 16, 16, warm_s=1, window_s=8, streams=1),
    *(HttpLoad("open", 16, 88, warm_s=3, window_s=10, rate_per_s=rate) for rate in (20.0, 60.0, 100.0)),
    HttpLoad("closed", 16, 128, warm_s=5, window_s=10, streams=STREAMS),
)
GPU_LOADS = (
    HttpLoad("unloaded", 16, 32, warm_s=1, window_s=5, streams=1),
    HttpLoad("open", 416, 88, warm_s=5, window_s=12, rate_per_s=17.0),
    HttpLoad("closed", 16, 128, warm_s=6, window_s=10, streams=STREAMS),
)
KEYS = ("system", "model", "streams", "mode", "scenario", "replicas", "rate_per_s")
MEASURED = ("ttft_p50_ms", "tpot_p50_ms", "path_cpu_us_per_token", "ttft_p99_ms", "tpot_p99_ms", "engine_cpu_us_per_token",
            "cpu_us_per_token_by_process", "tokens_per_event", "requests", "errors")  # fmt: skip
COLUMNS = ("system", "model", "streams", "tokens_per_s", "mode", "scenario", "replicas", "rate_per_s", *MEASURED)


@dataclass(frozen=True)
class Case:
    """One engine, its loads, and where its rows go."""

    model: str  # of the engine, in the result file
    engine: EngineArguments
    loads: tuple[HttpLoad, ...]
    modes: tuple[DirectiveName, ...]
    output: Path
    comments: Sequence[str]

    def save(self, row: dict[str, Any]) -> None:
        """Write one row into the result file and show it; a row with the same keys goes."""
        full = [str(({"model": self.model} | row).get(column, "")) for column in COLUMNS]
        print(" ".join(f"{name}={value}" for name, value in zip(COLUMNS, full, strict=True) if value), flush=True)
        results_csv.merge(self.output, COLUMNS, KEYS, [full], self.comments)


def values(found: Measurement, load: HttpLoad) -> dict[str, Any]:
    """Return all that a row may hold of a measurement."""

    def shown(value: float | None, digits: int = 2) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return {
        "streams": load.streams,
        "rate_per_s": f"{load.rate_per_s:g}",
        "scenario": load.name,
        "tokens_per_s": shown(found.tokens / found.seconds, 1),
        "ttft_p50_ms": shown(found.ttft_ms.p50),
        "ttft_p99_ms": shown(found.ttft_ms.p99),
        "tpot_p50_ms": shown(found.tpot_ms.p50),
        "tpot_p99_ms": shown(found.tpot_ms.p99),
        "path_cpu_us_per_token": shown(found.path_us_per_token, 1),
        "engine_cpu_us_per_token": shown(found.us_per_token(found.spent_s.get("engine", 0.0)), 1),
        "cpu_us_per_token_by_process": found.by_role(),
        "tokens_per_event": shown(found.tokens_per_chunk, 3),
        "requests": found.requests,
        "errors": found.errors,
    }


@contextlib.contextmanager
def running(case: Case, system: str, port: int, replicas: int) -> Iterator[RunningSystem]:
    """Give a system that is started here and stopped at the end."""
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        http_systems.start(system, case.engine, port, Path(folder), replicas) as service,
    ):
        print(
            f"{system} of {case.model}, {replicas} replicas: ready after {time.monotonic() - began_s:.0f} s", flush=True
        )
        yield service
    if case.engine.gpu:
        http_systems.wait_for_memory()


def run(case: Case, system: str, service: RunningSystem, replicas: int) -> None:
    """Run the loads, as many times one replica's as there are, on a service, in every precision that it has."""
    for mode in case.modes if system == "nestedfp" else case.modes[:1]:
        if system == "nestedfp":
            with ServiceClient(service.url, service.key) as client:
                client.direct(mode, DIRECTIVE_LIMIT_S, lambda _: None)
        for load in case.loads:
            senders = replicas if load.streams != 1 else 1
            found = measure(service, load, senders)
            whole = replace(load, streams=load.streams * senders, rate_per_s=load.rate_per_s * senders)
            case.save(values(found, whole) | {"system": system, "mode": mode, "replicas": replicas})


def cases(args: argparse.Namespace, comments: Sequence[str]) -> Iterator[Case]:
    """Yield what the arguments ask for."""
    loads = GPU_LOADS if args.gpu else CPU_LOADS
    if not args.gpu:
        engine = EngineArguments("fairytales-8m", MODEL_DIR, step_ms=args.step_ms, kv_cache_bytes=KV_BYTES)
        yield Case(
            f"timed_{args.step_ms:g}ms", engine, loads, MODES[:1], args.output or RESULTS / "http-path.csv", comments
        )
        return
    limits: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": STREAMS, "enforce_eager": False}
    for model in args.models.split(","):
        engine = EngineArguments(model, model_folder(model), gpu=True, dummy=True, **limits)
        yield Case(model, engine, loads, MODES, args.output or RESULTS / "h100-http.csv", comments)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; return the exit status: 0, 1 where a system failed, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http.http_path", description=__doc__)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma-separated (default: all)")
    parser.add_argument("--port", type=int, default=8210, help="where systems that are started here listen")
    parser.add_argument("--output", type=Path, help="result file; default: in benchmarks/results/")
    parser.add_argument("--step-ms", type=float, default=15.0, help="CPU: step of the timed engine")
    parser.add_argument("--replicas", default="1", help="numbers of replicas, comma-separated")
    parser.add_argument("--gpu", action="store_true", help="published shapes on GPUs instead")
    parser.add_argument("--models", default="llama-8b,mistral-24b", help="GPU: shapes")
    args = parser.parse_args(argv)
    for option, given, known in (
        ("--systems", args.systems.split(","), SYSTEMS),
        ("--models", args.models.split(","), tuple(SHAPES)),
    ):
        if unknown := set(given) - set(known):
            parser.error(f"{option}: expected some of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    failed = False
    for case in cases(args, results_csv.heading(argv)):
        for system in args.systems.split(","):
            try:
                for replicas in map(int, args.replicas.split(",")):
                    with running(case, system, args.port, replicas) as service:
                        run(case, system, service, replicas)
            except (RuntimeError, LoadtestError) as error:
                failed = True
                print(f"error: {system} of {case.model}: {error}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the system that we started is stopped
    sys.exit(main())
