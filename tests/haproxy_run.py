"""Runs the real HAProxy as Ray Serve does: its own template, our launcher, small HTTP servers in place of replicas."""

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from deploy import environment
from deploy.haproxy import launcher
from deploy.haproxy.haproxy_config import Limits

Reply = tuple[int, dict[str, str], bytes]


class Replica(http.server.ThreadingHTTPServer):
    """Answers health checks with ``health``, the question for room with ``room``, all else with what ``answers`` returns.

    Args:
        answers: (path, headers, body) -> status, headers, body.
    """

    daemon_threads = True

    def __init__(self, answers: Callable[[str, Mapping[str, str], bytes], Reply]) -> None:
        replica = self
        self.answers = answers
        self.health: Reply = (200, {}, b"success")
        self.room: Reply = (404, {}, b"")  # what it says it can take of prompts
        self.rooms_told = 0
        self.seen: list[tuple[str, dict[str, str]]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/-/healthz":
                    self._say(*replica.health)
                    return
                if self.path.endswith("/room"):
                    self._say(*replica.room)
                    replica.rooms_told += 1
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                replica.seen.append((self.path, headers))
                self._say(*replica.answers(self.path, headers, body))

            do_POST = do_GET

            def _say(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle()

        self._open: list[socket.socket] = []
        super().__init__(("127.0.0.1", 0), Handler)
        self.port = self.server_address[1]
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.append(connection)
        return connection, address

    def stop(self) -> None:
        """End as a killed process does: connections are closed, new ones refused."""
        self.shutdown()
        self.server_close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()


def ok(text: str) -> Callable[..., Reply]:
    """Answers that say ``text``."""
    return lambda path, headers, body: (200, {}, text.encode())


def render(folder: Path, port: int, backends: Mapping[str, tuple[str, list[int]]], leaves: bool = False) -> Path:
    """Write the configuration that Ray Serve would write.

    Args:
        backends: name -> (prefix, ports of its servers).
        leaves: the node is drained.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's imports
        from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
        from ray.serve.config import HTTPOptions

    path = folder / "haproxy.cfg"
    config = HAProxyConfig(
        http_options=HTTPOptions(host="127.0.0.1", port=port),
        socket_path=str(folder / "admin.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "state"),
        metrics_enabled=False,
        is_head=True,
        has_received_routes=True,
        has_received_servers=True,
        pass_health_checks=not leaves,
        health_check_inter="200ms",
        health_check_fall=2,
        health_check_rise=1,
    )
    made = {
        name: BackendConfig(
            name=name,
            path_prefix=prefix,
            app_name=name,
            servers=[ServerConfig(f"{name}-{server}", "127.0.0.1", server) for server in ports],
            fallback_server=ServerConfig("fallback", "127.0.0.1", 9),
        )
        for name, (prefix, ports) in backends.items()
    }
    HAProxyApi(config, made, config_file_path=str(path))._generate_config_file_internal()
    return path


# What Ray Serve's manager does, as a process: starts HAProxy, which ends with it.
MANAGER = "import subprocess, sys, time; subprocess.run(sys.argv[1:]); time.sleep(600)"


class Node:
    """Starts managers, which start HAProxy through our launcher."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.managers: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self._variables = launcher.environment(folder, 2, limits)

    def start_manager(self) -> None:
        """Start a manager with its HAProxy, after the end of the one before."""
        self.kill()
        self._start()

    def reload(self, pid: int) -> "subprocess.Popen[bytes]":
        """Start a manager whose HAProxy takes over from this one; return the manager."""
        return self._start("-sf", str(pid), "-x", str(self._folder / "admin.sock"))

    def _start(self, *more: str) -> "subprocess.Popen[bytes]":
        binary, config = self._variables["RAY_SERVE_HAPROXY_BINARY_PATH"], str(self._folder / "haproxy.cfg")
        with (self._folder / "haproxy.log").open("ab") as log:
            self.managers.append(
                subprocess.Popen(
                    [sys.executable, "-c", MANAGER, binary, "-db", "-f", config, "-dR", *more],
                    env={**os.environ, **self._variables},
                    stdout=log,
                    stderr=log,
                )
            )
        return self.managers[-1]

    def kill(self) -> None:
        """End the managers."""
        for manager in self.managers:
            manager.kill()
            manager.wait()


@contextlib.contextmanager
def running(
    folder: Path, backends: Mapping[str, tuple[str, list[int]]], limits: Limits | None = None
) -> Iterator[tuple[Node, int]]:
    """Run HAProxy in front of the given servers; the node and the port that HAProxy listens on."""
    (port,) = environment.free_ports(1)
    node = Node(folder, limits or Limits())
    render(folder, port, backends)
    try:
        node.start_manager()
        yield node, port
    finally:
        node.kill()


def haproxies(folder: Path) -> list[psutil.Process]:
    """The HAProxies whose files lie in this folder."""
    return [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "haproxy" and any(str(folder) in part for part in process.info["cmdline"] or ())
    ]


def lives(process: psutil.Process) -> bool:
    """Whether a process runs or stands still."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it has ended between the two
        return False


def error_of(body: bytes) -> dict[str, Any]:
    """The error of an answer in OpenAI's format with the request's id; the body must be one."""
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    return error
