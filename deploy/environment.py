"""The environment in which a node's Ray processes must start, so that Serve runs HAProxy as this service needs it.

``python -m deploy.environment --config FILE`` prints it for a shell, for clusters that are not started by ``deploy.serve``:

    eval "$(python -m deploy.environment --config FILE)" && ray start --head
"""

import argparse
import contextlib
import random
import shlex
import socket
import sys
import tempfile
from pathlib import Path

from deploy.config import DeployConfig, load
from deploy.haproxy import launcher
from deploy.haproxy.haproxy_config import Limits

FOLDER_PREFIX = "nestedfp-"
PORTS = range(20000, 30000)  # between those of Ray's workers and those that systems give to whoever asks for any
SOCKET_PATH_CHARACTERS = 97  # HAProxy's limit: the system's 107 less what it appends until a socket is bound
NODE_SOCKET = f"/{'0' * 56}/admin.sock"  # what Ray appends to the folder: a node's id, and a name


def private_folder() -> Path:
    """Return a new folder for HAProxy's sockets. Not below the repository: a socket's path may have 107 characters."""
    return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir="/tmp"))


def of(config: DeployConfig, folder: Path) -> dict[str, str]:
    """Return the environment for a configuration; HAProxy's files go to ``folder``.

    Raises:
        HAProxyMissing: there is no HAProxy.
        ValueError: the folder's path is too long for HAProxy's sockets.
    """
    if len(str(folder)) > (most := SOCKET_PATH_CHARACTERS - len(NODE_SOCKET)):
        raise ValueError(
            f"expected a folder for HAProxy's sockets with a path of at most {most} characters, got {folder} with "
            f"{len(str(folder))}; choose a shorter one"
        )
    limits = Limits(body_bytes=config.http.max_body_bytes)
    ports = free_ports(2)
    return {
        **launcher.environment(folder, config.most_replicas, limits),
        # Ray starts its workers with niceness 15: beside anything else that computes, engines and HAProxy would wait for it.
        "RAY_worker_niceness": "0",
        "VLLM_RPC_BASE_PATH": str(folder),  # sockets between a replica and its engine
        # A replica that has failed three health checks is ended at once, not after 20 s for its requests: an engine that hangs
        # finishes none, and the replica has told their clients before (deploy/agent/agent.py).
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
        # Whichever way a replica ends, its engine ends with it, and lets go of the GPU's memory.
        "RAY_process_group_cleanup_enabled": "true",
        # Serve replaces a controller that does not answer it three times: after 24 s and a little. Replicas can do without one for
        # longer; with half the limit, a sound one was replaced on two cores with a load of 12.
        "RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S": "2",
        "RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_TIMEOUT_S": "8",
        # Serve's Python proxy runs as well, without a request to answer; it must not stand in another service's way.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports[0]),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports[1]),
    }


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on at this moment.

    Neither the system nor Ray gives one of ``PORTS`` to somebody else before it is used.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):  # other code seeds the usual one
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"expected {count} free ports of {PORTS[0]} to {PORTS[-1]}, got {len(found)}")


def main(argv: list[str] | None = None) -> int:
    """Print the environment; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.environment", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="deployment YAML")
    parser.add_argument("--folder", type=Path, help="for HAProxy's files, with a short path (default: a new one)")
    args = parser.parse_args(argv)
    try:
        values = of(load(args.config), args.folder or private_folder())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, value in values.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
