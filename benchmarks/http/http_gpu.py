"""The HTTP path on GPUs: the service in both precisions, ``vllm serve`` in FP16, and the engine offline.

    python -m benchmarks.http.http_path --gpu --models llama-8b --systems nestedfp_http,vllm_http,engine_offline
    python -m benchmarks.http.http_path --gpu --models llama-8b --systems nestedfp_http --url nestedfp_http=http://127.0.0.1:8000

Published shapes with random weights. A system measures in one to two minutes for each precision and starts in one to four;
rows are written as they come, so a run may be cut into pieces. The shipped tokenizer, filled up to the shape's vocabulary, turns
every token into text. The engine offline is ``vllm.LLM`` without text, in the closed loop of the other systems
(benchmarks/engine/engine_closed.py).
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import results_csv
from benchmarks.engine import engine_closed, engine_process
from benchmarks.engine.engine_shapes import SHAPES, config_of
from benchmarks.http import http_rows, http_systems
from benchmarks.http.http_load import HttpLoad, prompts
from benchmarks.http.http_measure import measure
from benchmarks.http.http_systems import ROOT, EngineArguments, RunningSystem
from nestedfp.vllm_plugin.options import OPTIONS_KEY

RESULT = Path(__file__).parents[1] / "results" / "h100-http.csv"
SYSTEMS = {"nestedfp_http": "nestedfp", "vllm_http": "vllm_serve", "engine_offline": ""}
TOKENIZER = ROOT / "models" / "llama-8b-shape"
SCENARIOS = (
    HttpLoad("unloaded", 16, 32, warm_s=1, window_s=5, streams=1),
    HttpLoad("open", 416, 88, warm_s=5, window_s=12, rate_per_s=17.0),
    HttpLoad("closed", 16, 128, warm_s=6, window_s=10, streams=256),
)
STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 256, 16, 128


def engine(model: str, folder: Path, plugin: dict[str, Any] | None = None) -> EngineArguments:
    """Return the engine that all systems run for a shape.

    Args:
        plugin: options of nested weights.
    """
    arguments: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": STREAMS, "enforce_eager": False}
    return EngineArguments(model, folder, gpu=True, dummy=True, plugin=plugin or {}, **arguments)


def model_folder(model: str) -> Path:
    """Write a shape's folder: configuration and a tokenizer that has a text for every id; return its path.

    The path is the same every time, so that vLLM finds what it compiled before.
    """
    folder = Path(tempfile.gettempdir()) / f"nestedfp-http-{os.getuid()}" / model
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(model)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text((TOKENIZER / "tokenizer_config.json").read_text())
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text())
    fill(tokenizer["model"]["vocab"], config["vocab_size"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def fill(vocabulary: dict[str, int], size: int) -> None:
    """Add a text of a word's length for every id of a byte-level vocabulary that has none. No merge leads to them."""
    known = set(vocabulary.values())
    vocabulary.update({f"Ġx{index}": index for index in range(size) if index not in known})


def measure_service(
    service: RunningSystem,
    system: str,
    model: str,
    modes: Sequence[str],
    scenarios: Sequence[HttpLoad],
    replicas: int,
    output: Path,
    comments: Sequence[str],
) -> None:
    """Run the loads, as many times one replica's as there are, on a service, in every precision that it has."""
    for mode in modes if system == "nestedfp_http" else ["fp16"]:
        if system == "nestedfp_http":
            http_systems.direct(service, mode)
        for one in scenarios:
            total = replicas if one.streams != 1 else 1
            scenario = replace(one, streams=one.streams * total, rate_per_s=one.rate_per_s * total)
            texts = prompts(model_folder(model), scenario.prompt_tokens, count=256)
            measurement = measure(service, scenario, service.model_id, texts)
            row = http_rows.values(measurement, scenario) | {"system": system, "model": model, "mode": mode}
            row |= {"replicas": replicas}
            http_rows.save(output, http_rows.GPU_COLUMNS, http_rows.GPU_KEYS, row, comments)
            if measurement.figures.errors:
                http_systems.settle(service)


@contextlib.contextmanager
def running(
    system: str, model: str, urls: dict[str, str], port: int, replicas: int, plugin: dict[str, Any]
) -> Iterator[RunningSystem]:
    """Give a service that runs: the one at a URL, or one that is started here and stopped at the end."""
    if system in urls:
        yield http_systems.attach(system, urls[system])
        return
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        shape = engine(model, model_folder(model), plugin)
        with http_systems.start(SYSTEMS[system], shape, port, Path(folder), replicas) as service:
            ready_s = time.monotonic() - began_s
            print(f"{system} of {model}, {replicas} replicas: ready after {ready_s:.0f} s", flush=True)
            yield service
    wait_for_memory()


def wait_for_memory(limit_s: float = 60.0) -> None:
    """Wait until the processes that were stopped have given the GPU's memory back.

    Raises:
        RuntimeError: when something still holds it.
    """
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query.append(f"--id={visible}")
    deadline_s = time.monotonic() + limit_s
    while (used_mib := max(map(int, subprocess.check_output(query, text=True).split()))) > 2048:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{used_mib} MiB of GPU memory are still in use {limit_s:.0f} s after the service ended")
        time.sleep(1)


def measure_offline(spec: dict[str, Any]) -> None:
    """In a process of its own: start the engine, generate in both precisions."""
    shape = engine(spec["model"], Path(spec["model_dir"]))
    llm = engine_process.start(
        spec,
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_model_len=shape.max_model_len,
        additional_config={OPTIONS_KEY: spec["plugin"]},
    )
    for system in engine_process.modes_of("nestedfp", llm):
        mode = system.removeprefix("nestedfp_")
        if mode not in spec["modes"]:
            continue
        rate, ended = engine_closed.tokens_per_s(llm, STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS, warm_s=6, window_s=10)
        engine_process.row("closed", mode, round(rate, 1), ended)


def offline(model: str, modes: Sequence[str], plugin: dict[str, Any], output: Path, comments: Sequence[str]) -> None:
    """Measure the engine offline."""
    options = {"modes": list(modes), "plugin": plugin}
    for rows, notes in engine_process.collect("benchmarks.http.http_gpu", [model], ["nestedfp"], options):
        for scenario, mode, tokens_per_s, requests in rows:
            row = {"system": "engine_offline", "model": model, "streams": STREAMS, "mode": mode, "scenario": scenario}
            row |= {"replicas": 1, "tokens_per_s": tokens_per_s, "rate_per_s": "0", "requests": requests}
            http_rows.save(output, http_rows.GPU_COLUMNS, http_rows.GPU_KEYS, row, [*comments, *notes])


def main(args: argparse.Namespace) -> int:
    """Measure the systems one after the other; return the exit status."""
    urls = dict(value.split("=", 1) for value in args.url)
    systems = args.systems.split(",") if args.systems else list(SYSTEMS)
    models, modes = args.models.split(","), args.modes.split(",")
    counts = [int(count) for count in (args.replicas or "1").split(",")]
    if unknown := (set(systems) - set(SYSTEMS)) | (set(models) - set(SHAPES)) | (set(modes) - {"fp16", "fp8"}):
        print(f"error: unknown: {sorted(unknown)}; systems are {list(SYSTEMS)}, models {list(SHAPES)}", file=sys.stderr)
        return 2
    scenarios = [s for s in SCENARIOS if args.scenarios is None or s.name in args.scenarios.split(",")]
    if args.window_s is not None:
        scenarios = [replace(scenario, window_s=args.window_s) for scenario in scenarios]
    comments, output = results_csv.heading(), args.output or RESULT
    failed = False
    for model in models:
        for system in systems:
            try:
                if system == "engine_offline":
                    offline(model, modes, args.plugin, output, comments)
                    continue
                for replicas in counts:
                    with running(system, model, urls, args.port, replicas, args.plugin) as service:
                        measure_service(service, system, model, modes, scenarios, replicas, output, comments)
            except RuntimeError as error:
                failed = True
                print(f"error: {system} of {model}: {error}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http.http_gpu")
    parser.add_argument(
        "--spec", required=True, help="for the child process; call benchmarks.http.http_path --gpu instead"
    )
    measure_offline(json.loads(parser.parse_args().spec))
