"""A Ray cluster of several nodes on this machine, as ``ray start`` makes it; every process is ended by its own id.

Each node has a network namespace of its own, joined to the others and to this process by a bridge: its own address, its own
loopback, and the same ports as every other node, as a machine has. In one namespace two nodes could not both run an HAProxy on
the service's port. The addresses are of the range kept for such trials (198.18.0.0/15), which no network routes.
"""

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
from typing import Any

import httpx
import psutil
import redis_run
import yaml
from live_service import wait_until
from processes import ROOT

RAY = Path(sys.executable).parent / "ray"
SERVE = Path(sys.executable).parent / "serve"
GCS_PORT, DASHBOARD_PORT, REDIS_PORT = 6379, 8265, 6380
# As KubeRay starts the containers of a cluster whose head may die.
RECONNECT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
# With process ids of its own: a new head would take the other node's raylet for a sign that it runs already.
APART = ["unshare", "--pid", "--fork", "--mount-proc", "env"]
NODES = 2
LOG = "starts.log"
CPUS = 4  # of a node, as Ray counts them
# Settings of an engine whose steps take a given time.
TIMED: dict[str, Any] = {
    "max_num_seqs": 64,
    "cpu_threads": 1,
    "admission_limit": 128,
    "extra": {"worker_cls": "benchmarks.timed.timed_worker.TimedNestedFPWorker"},
}


def possible() -> bool:
    """Whether this process may make network namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


@dataclass(frozen=True)
class Cluster:
    """A running cluster; the first node is the head."""

    addresses: list[str]
    environment: dict[str, str]  # of its processes
    inside: list[list[str]]  # what a command begins with that is to run on a node
    processes: "list[subprocess.Popen[bytes]]"  # `ray start --block` of each node
    commands: list[list[str]]  # that started them
    folder: Path  # Ray's sessions, of all nodes

    @property
    def head(self) -> list[str]:
        return self.inside[0]

    def end_node(self, number: int) -> None:
        """End a node as the end of its pod does."""
        end([self.processes[number]])

    def start_node(self, number: int) -> None:
        """Start a node again as it was started, as Kubernetes does with a container that has ended."""
        assert self.processes[number].poll() is not None, "it runs"
        self.processes[number] = _started(self.commands[number], self.environment, self.folder.parent / LOG)

    @property
    def gcs(self) -> str:
        return f"{self.addresses[0]}:{GCS_PORT}"

    @property
    def dashboard(self) -> str:
        return f"http://{self.addresses[0]}:{DASHBOARD_PORT}"

    def applications(self) -> dict[str, Any]:
        """What Serve says of its applications."""
        token = {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}
        with httpx.Client(base_url=self.dashboard, timeout=30, trust_env=False, headers=token) as client:
            found = client.get("/api/serve/applications/")
            applications: dict[str, Any] = found.json()["applications"] if found.status_code == 200 else {}
            return applications

    def deploy(self, path: Path) -> None:
        """``serve deploy`` of a file."""
        command = [str(SERVE), "deploy", str(path), "-a", self.dashboard]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    def running(self) -> bool:
        """Whether the applications of the shipped configuration run, all of them as they were deployed last."""
        found = self.applications()
        states = {name: each["status"] for name, each in found.items()}
        assert "DEPLOY_FAILED" not in states.values(), str(found)[:3000]
        return states == {"nestedfp": "RUNNING", "nestedfp-control": "RUNNING"}


def service_environment(config: Path, folder: Path) -> dict[str, str]:
    """What ``python -m deploy.environment`` prints, read as a shell does."""
    command = [sys.executable, "-m", "deploy.environment", "--config", str(config), "--folder", str(folder)]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pairs = (shlex.split(line.removeprefix("export "))[0].partition("=") for line in text.splitlines())
    return {name: value for name, _, value in pairs}


def shipped(config: Path, port: int, into: Path, revision: str = "1") -> Path:
    """Write the shipped Serve configuration with another service's configuration, for nodes that see each other."""
    data = yaml.safe_load((ROOT / "deploy" / "serve-deploy.yaml").read_text())
    data["http_options"] |= {"host": "0.0.0.0", "port": port}  # as its comment says
    for application in data["applications"]:
        if "config" in application["args"]:
            application["args"] |= {"config": str(config), "revision": revision}
    into.write_text(yaml.safe_dump(data))
    return into


@contextlib.contextmanager
def network() -> Iterator[tuple[list[str], list[str], str]]:
    """Yield the names of a namespace for each node, their addresses, and that of this process in their network."""
    tag, third = f"nfp{os.getpid()}", os.getpid() % 256
    names = [f"{tag}n{number}" for number in range(1, NODES + 1)]
    addresses = [f"198.18.{third}.{number}" for number in range(1, NODES + 1)]
    gateway = f"198.18.{third}.254"

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    with contextlib.ExitStack() as stack:
        ip("link", "add", tag, "type", "bridge")
        stack.callback(ip, "link", "del", tag)
        ip("address", "add", f"{gateway}/24", "dev", tag)
        ip("link", "set", tag, "up")
        for name, address in zip(names, addresses, strict=True):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", name, "master", tag, "up")
            inside = ("-netns", name)
            ip(*inside, "address", "add", f"{address}/24", "dev", "eth0")
            ip(*inside, "link", "set", "lo", "up")
            ip(*inside, "link", "set", "eth0", "up")
            # Ray takes as a node's address the one from which the outside would be reached.
            ip(*inside, "route", "add", "default", "via", gateway)
        yield names, addresses, gateway


@contextlib.contextmanager
def cluster(config: Path, head_cpus: int = CPUS, redis: bool = False, step_s: float | None = None) -> Iterator[Cluster]:
    """Start the nodes in the environment that the service needs.

    Args:
        head_cpus: 0: the head has no replica.
        step_s: of engines with ``TIMED``.
        redis: the head keeps in a Redis what its successor must know, as on Kubernetes.
    """
    # Short: there are sockets in it.
    folder = Path(tempfile.mkdtemp(prefix="nfp-", dir="/tmp"))
    # One token for all nodes and for whoever deploys: Ray asks for one by default.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    plain = {**os.environ, **token, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**plain, **service_environment(config, folder / "h")}
    if step_s is not None:
        environment["TIMED_WORKER_STEP_MS"] = f"{step_s * 1e3:g}"
    started: list[subprocess.Popen[bytes]] = []
    commands: list[list[str]] = []
    of_head: dict[str, str] = {}
    password = ""
    logs = folder / LOG

    def start(number: int, cpus: int, *arguments: str) -> None:
        plain = ["start", "--block", f"--node-ip-address={addresses[number]}", f"--num-cpus={cpus}", *arguments]
        memory = f"--object-store-memory={100 << 20}"
        alone = [*APART, *(f"{name}={value}" for name, value in of_head.items())] if of_head and number == 0 else []
        commands.append([*found.inside[number], *alone, str(RAY), *plain, memory, "--disable-usage-stats"])
        started.append(_started(commands[-1], environment, logs))

    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        names, addresses, gateway = stack.enter_context(network())
        if redis:
            environment |= RECONNECT
            password = stack.enter_context(redis_run.redis(folder, gateway, REDIS_PORT))
            of_head = {"RAY_REDIS_ADDRESS": f"{gateway}:{REDIS_PORT}", "RAY_external_storage_namespace": "trial"}
        stack.callback(end, started)
        inside = [["ip", "netns", "exec", name] for name in names]
        found = Cluster(addresses, environment, inside, started, commands, folder / "ray")
        head = (f"--port={GCS_PORT}", f"--temp-dir={folder / 'ray'}", "--include-dashboard=true")
        where = (f"--dashboard-host={addresses[0]}", f"--dashboard-port={DASHBOARD_PORT}")
        start(0, head_cpus, "--head", *head, *where, *([f"--redis-password={password}"] if password else []))
        ports = (GCS_PORT, DASHBOARD_PORT)
        assert wait_until(lambda: all(listens(addresses[0], port) for port in ports), 120), logs.read_text()
        for number in range(1, NODES):
            start(number, CPUS, f"--address={found.gcs}")
        assert wait_until(lambda: _alive(found) == NODES, 120, 2.0), logs.read_text()
        yield found


def _started(command: list[str], environment: dict[str, str], logs: Path) -> "subprocess.Popen[bytes]":
    with logs.open("a") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)


def end(started: list[subprocess.Popen[bytes]]) -> None:
    """End nodes, the head last, and whatever they leave behind."""
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


def listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def _alive(found: Cluster) -> int:
    code = (
        f"import ray; ray.init('{found.gcs}', log_to_driver=False, logging_level='ERROR'); "
        "print(sum(node['Alive'] for node in ray.nodes()))"
    )
    done = subprocess.run(
        [*found.head, sys.executable, "-c", code], env=found.environment, capture_output=True, text=True, timeout=60
    )
    return int(done.stdout.split()[-1]) if done.returncode == 0 else 0
