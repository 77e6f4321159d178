"""Starts the systems of an experiment, and gives a running service another policy."""

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.engine.engine_shapes import model_folder
from benchmarks.http import http_systems
from benchmarks.http.http_systems import RunningSystem
from benchmarks.weights.random_weights import NESTED_WORKER
from experiments.config import Experiment, ExperimentError, Run, controller_section
from loadtest.errors import LoadtestError
from loadtest.service.admin import ServiceClient
from nestedfp.vllm_plugin.options import OPTIONS_KEY

SETTINGS = "deployment.yaml"
POLL_S = 0.5
LOGS = re.compile(r"logs in (\S+)$", re.MULTILINE)  # deploy/serve.py


def engine_of(experiment: Experiment, system: str, step_log: Path | None = None) -> http_systems.EngineArguments:
    """Return the engine's arguments, the same for every system but for its weights' precision.

    Args:
        step_log: folder for a log of every step of the service's engines; None: none is kept.
    """
    engine = experiment.engine
    if experiment.shape is not None:
        model_id, folder = experiment.shape, model_folder(experiment.shape)
    else:
        assert experiment.model is not None, "Experiment demands one of the two"
        model_id, folder = experiment.model.name, experiment.model.resolve()
    extra: dict[str, Any] = {"quantization": "fp8"} if system == "vllm_fp8" else {}
    if system == "vllm_nestedfp":  # plain `vllm serve`, one engine that decides by the SLO
        slo = {"ttft_ms": experiment.slo.ttft_ms, "tpot_ms": experiment.slo.tpot_ms}
        extra = {"quantization": "nestedfp", "additional_config": {OPTIONS_KEY: {"slo": slo, **engine.plugin}}}
        if experiment.shape is not None:
            extra["worker_cls"] = NESTED_WORKER
    return http_systems.EngineArguments(
        model_id=model_id,
        model_dir=folder,
        gpu=experiment.shape is not None,
        extra=extra,
        step_log=step_log,
        **engine.model_dump(),
    )


@contextlib.contextmanager
def running(
    experiment: Experiment, system: str, port: int, log_folder: Path, step_log: Path | None = None
) -> Iterator[tuple[RunningSystem, Path]]:
    """Give a system that runs, and its configuration's file; stop it at the end.

    ``log_folder`` keeps in a folder of the system's its log, and those of this service's replicas, engines and controller.

    Raises:
        ExperimentError: when it does not start, with the end of its log.
    """
    name, folder = "nestedfp" if system == "nestedfp" else "vllm_serve", log_folder / system
    folder.mkdir(parents=True, exist_ok=True)
    try:
        arguments = engine_of(experiment, system, step_log)
        with http_systems.start(name, arguments, port, folder, experiment.replicas) as service:
            try:
                yield service, folder / SETTINGS
            finally:
                keep_replica_logs(folder / f"{name}.log", folder / "replicas")
    except LoadtestError as error:
        raise ExperimentError(str(error)) from error
    if experiment.shape is not None:
        http_systems.wait_for_memory()


def keep_replica_logs(said: Path, kept: Path) -> None:
    """Copy what replicas, engines and the controller logged, which a service that stops takes with it.

    What its start-up command has ``said`` names the folder of logs; a peer's names none, and nothing is copied.
    """
    if (named := LOGS.search(said.read_text())) is None:
        return
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    session = Path(named[1])
    for path in (*session.glob("serve/*.log"), *session.glob("worker-*.out"), *session.glob("worker-*.err")):
        with contextlib.suppress(OSError):  # Ray may put it aside
            shutil.copy(path, kept)


def steer(service: RunningSystem, path: Path, experiment: Experiment, run: Run) -> None:
    """Give a running service the policy of a run.

    Raises:
        LoadtestError: when the service refuses it, with its answer.
    """
    settings = yaml.safe_load(path.read_text())
    settings["controller"] = controller_section(experiment.slo, run)
    path.write_text(yaml.safe_dump(settings))
    with ServiceClient(service.url, service.key) as client:
        client.reload()


def wait_until_whole(service: ServiceClient, replicas: int, limit_s: float, say: Callable[[str], None]) -> None:
    """Wait until that many replicas answer: one that was killed takes minutes to come back, in which a load is another.

    Raises:
        ExperimentError: when they do not come back in time, with how many answer.
    """
    deadline_s, said = time.monotonic() + limit_s, False
    while (found := _answering(service)) < replicas:
        if time.monotonic() > deadline_s:
            raise ExperimentError(f"expected {replicas} replicas to answer within {limit_s:.0f} s, {found} do")
        if not said:
            say(f"waiting: {found} of {replicas} replicas answer")
            said = True
        time.sleep(POLL_S)


def _answering(service: ServiceClient) -> int:
    try:
        return service.status().answering
    except LoadtestError:  # the controller may be restarting
        return 0
