"""One vLLM engine with random weights in one process: the child starts it and measures, the parent collects rows.

The engine core runs in the child itself, and every system is measured the same way; the weights are those of
benchmarks/weights/random_weights.py, or with ``--engine '{"worker_cls": "auto"}'`` vLLM's own dummy weights. Lines of the child's
standard output that begin with ROW or NOTE reach the parent; all others, such as vLLM's log, pass on to its standard error.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results_csv
from benchmarks.engine.engine_shapes import NAMES, config_of
from benchmarks.weights.random_weights import NESTED_WORKER, PLAIN_WORKER

SYSTEMS: dict[str, dict[str, Any]] = {
    "vllm_fp16": {},
    "vllm_fp8": {"quantization": "fp8"},
    "nestedfp": {"quantization": "nestedfp"},  # one engine, measured in both modes
}


def start(spec: dict[str, Any], **arguments: Any) -> Any:
    """In the child: return a ready ``vllm.LLM``; tells the parent how long that took."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    began_s = time.perf_counter()
    from vllm import LLM

    llm = LLM(
        **{
            "model": spec["model_dir"],
            "load_format": "dummy",
            "worker_cls": worker_of(spec["system"]),
            "dtype": "float16",
            "skip_tokenizer_init": True,
            "max_model_len": 2048,
            "max_num_seqs": 512,
            "max_num_batched_tokens": 8192,
            "gpu_memory_utilization": 0.9,
            "enable_prefix_caching": False,
            **SYSTEMS[spec["system"]],
            **arguments,
            **spec.get("engine", {}),
        }
    )
    cache = llm.llm_engine.vllm_config.cache_config
    info(
        f"{spec['model']} {spec['system']}: ready after {time.perf_counter() - began_s:.0f} s, KV cache "
        f"{cache.num_gpu_blocks * cache.block_size} tokens"
    )
    return llm


def worker_of(system: str) -> str:
    """Return the worker that draws a system's weights."""
    return NESTED_WORKER if SYSTEMS[system].get("quantization") == "nestedfp" else PLAIN_WORKER


def modes_of(system: str, llm: Any) -> Iterator[str]:
    """Yield the names of the systems that one engine stands for, with the engine in the right mode."""
    if SYSTEMS[system].get("quantization") != "nestedfp":
        yield system
        return
    from nestedfp.modes import Mode
    from nestedfp.vllm_plugin import control

    for mode in Mode:
        control.set_directive(llm, mode.value)
        yield f"{system}_{mode.value}"


def random_prompt(tokens: int, vocabulary: int = 30000) -> dict[str, list[int]]:
    """Return a prompt of random token ids below ``vocabulary``."""
    return {"prompt_token_ids": [random.randrange(10, vocabulary) for _ in range(tokens)]}


def row(*values: Any) -> None:
    """In the child: hand one row to the parent."""
    print("ROW " + json.dumps(values), flush=True)


def info(note: str) -> None:
    """In the child: hand a note for the head of the result file to the parent."""
    print("NOTE " + note, flush=True)


def collect(
    module: str, models: Iterable[str], systems: Iterable[str], options: dict[str, Any]
) -> Iterator[tuple[list[list[Any]], list[str]]]:
    """In the parent: run ``python -m module --spec ...`` for every engine; yield new rows, and all its notes so far.

    Rows come one by one, so that what was measured is kept when a run is cut off.
    """
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config_of(model)))
            for system in systems:
                spec = json.dumps({"model": model, "model_dir": folder, "system": system, **options})
                notes: list[str] = []
                command = [sys.executable, "-m", module, "--spec", spec]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                    assert process.stdout is not None
                    for line in process.stdout:
                        if line.startswith("ROW "):
                            values = json.loads(line[4:])
                            print(*values, flush=True)
                            yield [values], notes
                        elif line.startswith("NOTE "):
                            notes.append(line[5:].strip())
                            print(notes[-1], flush=True)
                        else:
                            print(line, end="", file=sys.stderr, flush=True)
                if process.returncode:
                    print(f"error: {system} on {model} ended with {process.returncode}", file=sys.stderr, flush=True)
                yield [], notes


def parser_of(module: str, about: str | None, models: str, result: Path) -> argparse.ArgumentParser:
    """Return a parser of what every benchmark of engines takes.

    Args:
        module: that is run with ``python -m``.
        about: its docstring.
        models: the default, comma-separated.
        result: the default file.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--models", default=models, help="comma-separated, of " + ", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=result)
    parser.add_argument("--engine", type=json.loads, default={}, help="more arguments of vllm.LLM, as JSON")
    parser.add_argument("--spec", help=argparse.SUPPRESS)
    parser.set_defaults(module=module)
    return parser


def main(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    measure: Callable[[dict[str, Any]], None],
    columns: Sequence[str],
    keys: int,
    options: Callable[[argparse.Namespace], dict[str, Any]] = lambda args: {},
) -> int:
    """Run every engine in turn, or be the process of one; return the exit status.

    Args:
        parser: of ``parser_of``, with the benchmark's own arguments and ``--systems`` added.
        argv: the arguments; None: the process's.
        measure: runs in the process of one engine, with its spec.
        columns: of the result file.
        keys: how many of them name a row.
        options: what the spec holds besides model and system.
    """
    args = parser.parse_args(argv)
    if args.spec:
        measure(json.loads(args.spec))
        return 0
    given = {"engine": args.engine, **options(args)}
    heading = results_csv.heading(argv)
    found = 0
    for rows, notes in collect(args.module, args.models.split(","), args.systems.split(","), given):
        results_csv.merge(args.out, columns, keys, rows, [*heading, *notes])
        found += len(rows)
    return 0 if found else 1
