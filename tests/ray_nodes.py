"""A Ray cluster of several raylets on this machine, as ``ray start`` makes it; every process is ended by its own id."""

import contextlib
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from live_service import wait_until
from processes import ROOT

RAY = Path(sys.executable).parent / "ray"
SERVE = Path(sys.executable).parent / "serve"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Cluster:
    """A running cluster."""

    gcs: str  # HOST:PORT
    dashboard: str  # URL
    environment: dict[str, str]
    folder: Path


def service_environment(config: Path, folder: Path) -> dict[str, str]:
    """What ``python -m deploy.environment`` prints, read as a shell does."""
    command = [sys.executable, "-m", "deploy.environment", "--config", str(config), "--folder", str(folder)]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pairs = (shlex.split(line.removeprefix("export "))[0].partition("=") for line in text.splitlines())
    return {name: value for name, _, value in pairs}


@contextlib.contextmanager
def cluster(config: Path, nodes: int = 2, bare_nodes: int = 0) -> Iterator[Cluster]:
    """Start a head and further nodes; ``bare_nodes`` of them without the environment that the service needs."""
    folder = Path(tempfile.mkdtemp(prefix="nfp-", dir="/tmp"))
    # One token for all nodes and for whoever deploys: Ray asks for one by default.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    plain = {**os.environ, **token, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**plain, **service_environment(config, folder / "h")}
    gcs, dashboard = free_port(), free_port()
    started: list[subprocess.Popen[bytes]] = []
    logs = folder / "starts.log"

    def start(env: dict[str, str], *arguments: str) -> None:
        ports = (
            f"--{name}={free_port()}"
            for name in ("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port")
        )
        command = [
            *(str(RAY), "start", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=4", "--disable-usage-stats"),
            *(f"--object-store-memory={100 << 20}", f"--runtime-env-agent-port={free_port()}", *ports, *arguments),
        ]
        with logs.open("a") as log:
            started.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True))

    try:
        start(
            environment,
            "--head",
            f"--port={gcs}",
            f"--temp-dir={folder / 'ray'}",
            "--include-dashboard=true",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={dashboard}",
        )
        found = Cluster(f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}", environment, folder)
        assert wait_until(lambda: _listens(gcs) and _listens(dashboard), 120), logs.read_text()
        for number in range(1, nodes):
            start(plain if number >= nodes - bare_nodes else environment, f"--address={found.gcs}")
        assert wait_until(lambda: _alive(found) == nodes, 120, 2.0), logs.read_text()
        yield found
    finally:
        for process in reversed(started):
            with contextlib.suppress(psutil.NoSuchProcess):
                family = psutil.Process(process.pid).children(recursive=True)
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                for each in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
                process.kill()
                process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _alive(found: Cluster) -> int:
    code = (
        f"import ray; ray.init('{found.gcs}', log_to_driver=False, logging_level='ERROR'); "
        "print(sum(node['Alive'] for node in ray.nodes()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=found.environment, capture_output=True, text=True, timeout=60
    )
    return int(done.stdout.split()[-1]) if done.returncode == 0 else 0
