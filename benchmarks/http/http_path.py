"""What the path from token to client costs: the real service, ``vllm serve`` and the engine alone under the same loads.

    python -m benchmarks.http.http_path                                  # CPU: benchmarks/results/http-path.csv
    python -m benchmarks.http.http_path --gpu --models llama-8b          # one GPU: benchmarks/results/h100-http.csv
    python -m benchmarks.http.http_path --gpu --models llama-8b --systems nestedfp_http --replicas 1,2,4,8    # as many GPUs
    python -m benchmarks.http.http_path --systems nestedfp --url nestedfp=http://127.0.0.1:8000    # a service that runs already

On the CPU the engine is vLLM with a worker whose step is a sleep (``timed_worker.py``), so that tokens come at a known speed
and the processor is left to the path, and the demonstration's real model. All systems run the same engine arguments, one
front process per replica, the same request bodies and arrival times. ``path_cpu_us_per_token`` is the processor time of all
processes of a system but its engine, from /proc; for the engine alone it is its front half, and what asks for the tokens.
"""

import argparse
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import results_csv
from benchmarks.http import http_engine, http_rows, http_systems
from benchmarks.http.http_engine import EngineProcess
from benchmarks.http.http_load import HttpLoad, prompts
from benchmarks.http.http_measure import measure
from benchmarks.http.http_systems import ROOT, EngineArguments, RunningSystem

RESULT = Path(__file__).parents[1] / "results" / "http-path.csv"
SYSTEMS = ("nestedfp", "vllm_serve", "engine")
MODEL_DIR = ROOT / "models" / "fairytales-8m"
KV_BYTES = 256 << 20  # 64,000 tokens of the demonstration's model
PORT = 8210


@dataclass(frozen=True)
class EngineCase:
    """One engine in so many replicas, and its loads."""

    label: str  # of the engine, in the result file
    engine: EngineArguments
    scenarios: tuple[HttpLoad, ...]
    replicas: int = 1


def cases(names: Sequence[str], step_ms: float, replicas: Sequence[int]) -> Iterator[EngineCase]:
    """Yield what is measured on a CPU.

    Two cores saturate with one replica's 256 streams, so replicas are compared with a slower step and fewer streams: whether
    the path spreads the load, not how many cores there are.
    """
    timed = EngineArguments("fairytales-8m", MODEL_DIR, step_ms=step_ms, kv_cache_bytes=KV_BYTES)
    if "timed" in names:
        loads = (
            HttpLoad("unloaded", 16, 16, warm_s=1, window_s=8, streams=1),
            *(HttpLoad("open", 16, 88, warm_s=3, window_s=10, rate_per_s=rate) for rate in (20.0, 60.0, 100.0)),
            HttpLoad("closed", 16, 128, warm_s=5, window_s=10, streams=256),
        )
        yield EngineCase(f"timed_{step_ms:g}ms", timed, loads)
    if "demo" in names:
        demo = EngineArguments("fairytales-8m", MODEL_DIR, kv_cache_bytes=KV_BYTES, max_num_seqs=64)
        loads = (
            HttpLoad("unloaded", 16, 16, warm_s=1, window_s=8, streams=1),
            HttpLoad("closed", 16, 64, warm_s=5, window_s=10, streams=64),
        )
        yield EngineCase("fairytales-8m", demo, loads)
    if "scale" in names:
        slow = EngineArguments(
            "fairytales-8m", MODEL_DIR, step_ms=4 * step_ms, kv_cache_bytes=KV_BYTES, max_num_seqs=64
        )
        for count in replicas:
            load = HttpLoad("scale", 16, 64, warm_s=6, window_s=12, streams=64 * count)
            yield EngineCase(f"timed_{4 * step_ms:g}ms", slow, (load,), count)


@contextlib.contextmanager
def running(system: str, case: EngineCase, urls: dict[str, str], port: int) -> Iterator[RunningSystem | EngineProcess]:
    """Give a system that runs: the one at a URL, or one that is started here and stopped at the end."""
    if system in urls:
        yield http_systems.attach(system, urls[system])
    elif system == "engine":
        with http_engine.start(case.engine) as engine:
            yield engine
    else:
        with (
            tempfile.TemporaryDirectory() as folder,
            http_systems.start(system, case.engine, port, Path(folder), case.replicas) as service,
        ):
            yield service


def run(case: EngineCase, system: str, urls: dict[str, str], port: int, output: Path, comments: Sequence[str]) -> None:
    """Measure one system under a case's loads."""
    texts = prompts(case.engine.model_dir, case.scenarios[0].prompt_tokens)
    with running(system, case, urls, port) as target:
        for scenario in case.scenarios:
            model_id = target.model_id if isinstance(target, RunningSystem) else case.engine.model_id
            measurement = measure(target, scenario, model_id, texts)
            row = http_rows.values(measurement, scenario)
            row |= {"system": system, "engine": case.label, "replicas": case.replicas}
            http_rows.save(output, http_rows.COLUMNS, http_rows.KEYS, row, comments)
            print(f"  load client: {measurement.client_us_per_token:.1f} us per token", flush=True)
            if isinstance(target, RunningSystem) and measurement.figures.errors:
                http_systems.settle(target)


def pairs(values: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE arguments."""
    return dict(value.split("=", 1) for value in values)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http.http_path", description=__doc__)
    parser.add_argument("--systems", help="comma-separated; default: all")
    parser.add_argument("--url", action="append", default=[], help="SYSTEM=URL of a system that runs already")
    parser.add_argument("--port", type=int, default=PORT, help="where systems that are started here listen")
    parser.add_argument("--output", type=Path, help="result file; default: benchmarks/results/")
    parser.add_argument("--cases", default="timed,demo,scale", help="CPU: comma-separated")
    parser.add_argument("--step-ms", type=float, default=15.0, help="CPU: step of the timed engine")
    parser.add_argument("--replicas", help="numbers of replicas; CPU, case scale: 1,2,4; GPU: 1")
    parser.add_argument("--gpu", action="store_true", help="one GPU and published shapes instead")
    parser.add_argument("--models", default="llama-8b,mistral-24b", help="GPU: shapes")
    parser.add_argument("--modes", default="fp16,fp8", help="GPU: precisions of nested weights")
    parser.add_argument("--plugin", type=json.loads, default={}, help="GPU: options of nested weights, as JSON")
    parser.add_argument("--scenarios", help="names; default: all")
    parser.add_argument("--window-s", type=float, help="GPU: seconds of each load that count; default: each its own")
    args = parser.parse_args(argv)
    if args.gpu:
        from benchmarks.http import http_gpu

        return http_gpu.main(args)
    urls = pairs(args.url)
    systems = args.systems.split(",") if args.systems else list(SYSTEMS)
    if unknown := set(systems) - set(SYSTEMS):
        parser.error(f"unknown systems {sorted(unknown)}; expected some of {', '.join(SYSTEMS)}")
    comments = results_csv.heading(argv)
    failed = False
    counts = [int(count) for count in (args.replicas or "1,2,4").split(",")]
    for case in cases(args.cases.split(","), args.step_ms, counts):
        wanted = [s for s in case.scenarios if args.scenarios is None or s.name in args.scenarios.split(",")]
        chosen = EngineCase(case.label, case.engine, tuple(wanted), case.replicas)
        for system in systems:
            if not wanted or (case.replicas > 1 and system != "nestedfp"):
                continue  # vllm serve and the engine alone are one replica
            try:
                run(chosen, system, urls, args.port, args.output or RESULT, comments)
            except RuntimeError as error:
                failed = True
                print(f"error: {system}, {case.label}: {error}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the system that we started is stopped
    sys.exit(main())
