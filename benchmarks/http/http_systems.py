"""Starts what the HTTP benchmark compares, one at a time: the real service, and ``vllm serve`` with the same engine arguments.

Every system is a process of its own whose tree can be looked at; its log lies in the folder it was given.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.steps import FOLDER_ENV
from benchmarks.weights.random_weights import NESTED_WORKER, PLAIN_WORKER
from loadtest.errors import ServiceError
from loadtest.service.process import lists_models, serve_command, started_service

ROOT = Path(__file__).resolve().parents[2]
# vLLM's own start of a server with one API process: what `vllm serve` runs, and found where the package has another name.
VLLM_SERVER = "vllm.entrypoints.launchers.api_server.entry"


@dataclass(frozen=True)
class EngineArguments:
    """The engine that all systems run, in the words of vLLM's arguments."""

    model_id: str
    model_dir: Path
    gpu: bool = False
    step_ms: float | None = None  # a timed worker; None: the model itself
    dummy: bool = False  # random weights (benchmarks/weights/random_weights.py)
    max_model_len: int = 1024
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_cache_bytes: int | None = None
    enable_prefix_caching: bool = False
    enforce_eager: bool = True
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    extra: dict[str, Any] = field(default_factory=dict)  # further engine arguments
    plugin: dict[str, Any] = field(default_factory=dict)  # options of nested weights: nestedfp/vllm_plugin/options.py
    step_log: Path | None = (
        None  # of the service: folder for a log of every step (benchmarks/steps); None: none is kept
    )

    def limits(self) -> dict[str, Any]:
        """Return what vLLM and the service's engine section call alike."""
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "enforce_eager": self.enforce_eager,
            "enable_prefix_caching": self.enable_prefix_caching,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "tensor_parallel_size": self.tensor_parallel_size,
        }

    def arguments(self) -> dict[str, Any]:
        """Return vLLM's engine arguments, without the model and what differs between the systems."""
        arguments: dict[str, Any] = {
            "dtype": "float16",
            "load_format": "dummy" if self.dummy else "auto",
            "max_model_len": self.max_model_len,
            **self.limits(),
            **self.extra,
        }
        if self.kv_cache_bytes is not None:
            arguments["kv_cache_memory_bytes"] = self.kv_cache_bytes
        return arguments

    def environment(self) -> dict[str, str]:
        """Return what the processes of a system find in their environment."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if not self.gpu:
            variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        if self.step_ms is not None:
            variables["TIMED_WORKER_STEP_MS"] = f"{self.step_ms:g}"
        if self.step_log is not None:
            variables[FOLDER_ENV] = str(self.step_log.resolve())
        return {**os.environ, **variables}


@dataclass(frozen=True)
class RunningSystem:
    """A running system."""

    name: str
    url: str
    model_id: str
    pid: int  # root of its processes
    key: str  # of its admin routes


def deployment(engine: EngineArguments, port: int, replicas: int) -> dict[str, Any]:
    """Return the service's configuration for an engine; its keys are those of ``deploy.config``."""
    extra = dict(engine.extra)
    if engine.dummy:
        extra.setdefault("worker_cls", NESTED_WORKER)
    if engine.step_ms is not None:
        extra["worker_cls"] = "benchmarks.timed.timed_worker.TimedNestedFPWorker"
    if engine.step_log is not None:
        extra["worker_cls"] = "benchmarks.steps.logged_worker.LoggedNestedFPWorker"
    section: dict[str, Any] = {
        "accelerator": "gpu" if engine.gpu else "cpu",
        **engine.limits(),
        "extra": extra,
        **engine.plugin,
    }
    if engine.kv_cache_bytes is not None:
        section["kv_cache_bytes"] = engine.kv_cache_bytes
    if not engine.gpu:
        section["cpu_threads"] = 1
    return {
        "model": {
            "id": engine.model_id,
            "path": str(engine.model_dir),
            "load_format": "dummy" if engine.dummy else "auto",
            "max_model_len": engine.max_model_len,
        },
        "engine": section,
        "http": {"port": port},
        "replicas": replicas,
        # The benchmark holds the precision still; what it measures is the path.
        "controller": {"policy": {"name": "static_fp16"}},
    }


def vllm_command(engine: EngineArguments, port: int, replicas: int = 1) -> list[str]:
    """Return the command of ``vllm serve`` with one API process, and an engine for each data-parallel rank."""
    arguments = engine.arguments() | {
        "model": str(engine.model_dir),
        "served_model_name": engine.model_id,
        "host": "127.0.0.1",
        "port": port,
    }
    if replicas > 1:
        arguments["data_parallel_size"] = replicas
    if engine.dummy:
        arguments.setdefault("worker_cls", PLAIN_WORKER)
    if engine.step_ms is not None:
        arguments["worker_cls"] = "benchmarks.timed.timed_worker.TimedCPUWorker"
        arguments["distributed_executor_backend"] = "benchmarks.timed.timed_worker.InCoreExecutor"
    command = [sys.executable, "-m", VLLM_SERVER, "--disable-uvicorn-access-log"]
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            command += [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return command


@contextlib.contextmanager
def start(
    name: str, engine: EngineArguments, port: int, folder: Path, replicas: int = 1, limit_s: float = 600.0
) -> Iterator[RunningSystem]:
    """Start a system and wait until it answers; stop it at the end.

    Args:
        name: "nestedfp" or "vllm_serve".
        replicas: of the engine, on as many times its GPUs.

    Raises:
        LoadtestError: when it does not start, with the end of its log.
    """
    url = f"http://127.0.0.1:{port}"
    if name == "nestedfp":
        if lists_models(url):
            raise ServiceError(f"another server answers on {url} already; stop it or choose another --port")
        path = folder / "deployment.yaml"
        path.write_text(yaml.safe_dump(deployment(engine, port, replicas)))
        command, silent_url = serve_command(path), None
    else:
        command, silent_url = vllm_command(engine, port, replicas), url
    log = folder / f"{name}.log"
    with started_service(command, log, limit_s, lambda _: None, engine.environment(), silent_url) as started:
        yield RunningSystem(name, started.url, engine.model_id, started.process.pid, started.key)


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
