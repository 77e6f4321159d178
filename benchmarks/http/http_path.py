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
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import results_csv
from benchmarks.engine.engine_shapes import DENSE, model_folder
from benchmarks.http import http_systems
from benchmarks.http.http_measure import MEASURED, HttpLoad, measure
from benchmarks.http.http_systems import ROOT, EngineArguments
from loadtest.errors import LoadtestError
from loadtest.service.admin import DirectiveName, ServiceClient

RESULTS = Path(__file__).parents[1] / "results"
SYSTEMS = ("nestedfp", "vllm_serve")
MODES: tuple[DirectiveName, ...] = ("fp16", "fp8")
DIRECTIVE_LIMIT_S = 60.0  # and for the requests that a load has left behind
STEP_MS = 15.0  # of the timed engine
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
COLUMNS = (*KEYS, *MEASURED)


def engines(args: argparse.Namespace) -> Iterator[tuple[str, EngineArguments]]:
    """Yield what the result file calls an engine, and its arguments."""
    if not args.gpu:
        folder = ROOT / "models" / "fairytales-8m"
        limits = {"max_model_len": 1024, "kv_cache_bytes": KV_BYTES}
        yield f"timed_{STEP_MS:g}ms", EngineArguments(model_id=folder.name, model_dir=folder, step_ms=STEP_MS, **limits)
        return
    limits = {"max_model_len": 2048, "max_num_seqs": STREAMS}
    for model in args.models.split(","):
        yield model, EngineArguments(model_id=model, model_dir=model_folder(model), gpu=True, **limits)


def measured(system: str, engine: EngineArguments, port: int, replicas: int) -> Iterator[dict[str, Any]]:
    """Start a system and run the loads, as many times one replica's as there are, in each precision that it has; yield the rows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        http_systems.start(system, engine, port, Path(folder), replicas) as service,
    ):
        for mode in MODES if engine.gpu and system == "nestedfp" else MODES[:1]:
            if system == "nestedfp":
                with ServiceClient(service.url, service.key) as client:
                    client.direct(mode, DIRECTIVE_LIMIT_S, lambda _: None)
            for load in GPU_LOADS if engine.gpu else CPU_LOADS:
                senders = replicas if load.streams != 1 else 1
                whole = {"streams": load.streams * senders, "rate_per_s": f"{load.rate_per_s * senders:g}"}
                where = {"system": system, "mode": mode, "scenario": load.name, "replicas": replicas}
                yield where | whole | measure(service, load, senders)
    if engine.gpu:
        http_systems.wait_for_memory()


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; return the exit status: 0, 1 where a system failed, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http.http_path", description=__doc__)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma-separated (default: all)")
    parser.add_argument("--port", type=int, default=8210, help="where systems that are started here listen")
    parser.add_argument("--output", type=Path, help="result file; default: in benchmarks/results/")
    parser.add_argument("--replicas", default="1", help="numbers of replicas, comma-separated")
    parser.add_argument("--gpu", action="store_true", help="published shapes on GPUs instead")
    parser.add_argument("--models", default="llama-8b,mistral-24b", help="GPU: shapes")
    args = parser.parse_args(argv)
    for option, given, known in (
        ("--systems", args.systems.split(","), SYSTEMS),
        ("--models", args.models.split(","), DENSE),
    ):
        if unknown := set(given) - set(known):
            parser.error(f"{option}: expected some of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    output = args.output or RESULTS / ("h100-http.csv" if args.gpu else "http-path.csv")
    comments, failed = results_csv.heading(argv), False
    for name, engine in engines(args):
        for system in args.systems.split(","):
            try:
                for replicas in map(int, args.replicas.split(",")):
                    for found in measured(system, engine, args.port, replicas):
                        row = {"model": name, **found}
                        print(" ".join(f"{column}={row[column]}" for column in COLUMNS), flush=True)
                        results_csv.merge(output, COLUMNS, KEYS, [[row[column] for column in COLUMNS]], comments)
            except (RuntimeError, LoadtestError) as error:
                failed = True
                print(f"error: {system} of {name}: {error}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the system that we started is stopped
    sys.exit(main())
