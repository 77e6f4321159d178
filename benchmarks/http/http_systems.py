"""Starts what the HTTP benchmark compares, one at a time: the real service, and ``vllm serve`` with the same engine arguments.

Every system is a process of its own whose tree can be looked at; its log lies in the folder it was given.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, field_validator

from benchmarks.results_csv import nvidia_smi
from benchmarks.steps import FOLDER_ENV
from benchmarks.weights.random_weights import NESTED_WORKER, PLAIN_WORKER
from controller.config import explain
from deploy.config import EngineSection
from loadtest.errors import ServiceError
from loadtest.service.process import lists_models, serve_command, started_service
from nestedfp.vllm_plugin.options import PluginOptions
from workload.frozen import FrozenModel

ROOT = Path(__file__).resolve().parents[2]
# vLLM's own start of a server with one API process: what `vllm serve` runs, and found where the package has another name.
VLLM_SERVER = "vllm.entrypoints.launchers.api_server.entry"


class EngineConfig(FrozenModel):
    """The limits of an engine, in the words of vLLM's arguments, and the options of its nested weights."""

    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    max_model_len: Annotated[int, Field(ge=2)] = 4096
    max_num_seqs: Annotated[int, Field(ge=1)] = 256
    max_num_batched_tokens: Annotated[int, Field(ge=16)] = 2048
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    kv_cache_bytes: int | None = None  # on a CPU
    enable_prefix_caching: bool = False
    plugin: dict[str, Any] = Field(default_factory=dict)  # options of the service's engine section

    @field_validator("plugin")
    @classmethod
    def _known_to_the_service(cls, plugin: dict[str, Any]) -> dict[str, Any]:
        # Other keys of that section are the same for every system: those above.
        known = {option.name for option in fields(PluginOptions)} & set(EngineSection.model_fields)
        if unknown := sorted(set(plugin) - known):
            raise ValueError(f"expected some of {', '.join(sorted(known))}, got {', '.join(unknown)}")
        try:
            EngineSection.model_validate(plugin)
        except ValidationError as error:
            raise ValueError(explain(error)) from error
        return plugin


class EngineArguments(EngineConfig):
    """The engine that all systems run."""

    model_id: str
    model_dir: Path
    gpu: bool = False  # a published shape with random weights (benchmarks/weights/random_weights.py)
    step_ms: float | None = None  # a timed worker; None: the model itself
    extra: dict[str, Any] = Field(default_factory=dict)  # further engine arguments
    step_log: Path | None = None  # of the service: folder for a log of every step (benchmarks/steps)

    def limits(self) -> dict[str, Any]:
        """Return what vLLM and the service's engine section call alike."""
        own = {"max_model_len", "kv_cache_bytes", "plugin"}
        return self.model_dump(include=set(EngineConfig.model_fields) - own) | {"enforce_eager": not self.gpu}

    def arguments(self) -> dict[str, Any]:
        """Return vLLM's engine arguments, without the model and what differs between the systems."""
        arguments: dict[str, Any] = {
            "dtype": "float16",
            "load_format": "dummy" if self.gpu else "auto",
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

    url: str
    model_id: str
    pid: int  # root of its processes
    key: str  # of its admin routes


def deployment(engine: EngineArguments, port: int, replicas: int) -> dict[str, Any]:
    """Return the service's configuration for an engine; its keys are those of ``deploy.config``."""
    extra = dict(engine.extra)
    if engine.gpu:
        extra.setdefault("worker_cls", NESTED_WORKER)
    if engine.step_ms is not None:
        extra["worker_cls"] = "benchmarks.timed.timed_worker.TimedNestedFPWorker"
    if engine.step_log is not None:
        extra["worker_cls"] = "benchmarks.steps.logged_worker.LoggedNestedFPWorker"
    section: dict[str, Any] = {
        "accelerator": "gpu" if engine.gpu else "cpu",
        **engine.limits(),
        "extra": extra,
        "kv_cache_bytes": engine.kv_cache_bytes,
        **engine.plugin,
    }
    if not engine.gpu:
        section["cpu_threads"] = 1
    return {
        "model": {
            "id": engine.model_id,
            "path": str(engine.model_dir),
            "load_format": "dummy" if engine.gpu else "auto",
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
    if engine.gpu:
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
        yield RunningSystem(started.url, engine.model_id, started.process.pid, started.key)


def wait_for_memory(limit_s: float = 60.0) -> None:
    """Wait until the processes that were stopped have given the GPU's memory back.

    Raises:
        RuntimeError: when something still holds it.
    """
    deadline_s = time.monotonic() + limit_s
    while (used_mib := max(int(each.split()[0]) for each in nvidia_smi("memory.used"))) > 2048:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{used_mib} MiB of GPU memory are still in use {limit_s:.0f} s after the service ended")
        time.sleep(1)
