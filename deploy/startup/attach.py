"""``python -m deploy.serve --address ADDRESS``: starts the applications on a Ray cluster that runs already, and returns.

They stay until ``serve shutdown``. The nodes must have been started in the environment that ``python -m deploy.environment``
prints, because Ray Serve reads it when its processes start; every node is asked before anything is deployed.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.config import ConfigError, DeployConfig
from deploy.haproxy.launcher import SETTINGS_ENV

PREFIXES = ("RAY_SERVE_", SETTINGS_ENV)
CONNECT_TIMEOUT_S = 5.0
HOW = "start every node in the environment that 'python -m deploy.environment --config FILE' prints"


def run(config: DeployConfig, path: Path, address: str) -> int:
    """Deploy both applications, or bring them up to date; return when all replicas answer.

    Args:
        config: of the service.
        path: where it came from, the same on every node.
        address: of the cluster as ``ray.init`` takes it: ``auto``, or ``HOST:PORT`` of its GCS.

    Raises:
        ConfigError: a node lacks the environment, or the address is none.
        ConnectionError: there is no cluster at the address.
    """
    require_listener(address)
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        nodes = node_environments()
        require_environment(nodes)
        # Ray Serve reads it when it is imported: here as on the nodes.
        os.environ |= next(iter(nodes.values()))
        from ray import serve

        from deploy.app import applications

        serve.start(
            proxy_location="EveryNode",
            http_options={"host": config.http.host, "port": config.http.port},
            logging_config={"enable_access_log": False},
        )
        serve.run_many(applications(config, path))
        where = ", ".join(sorted(nodes))
        print(
            f"ready on port {config.http.port} of the cluster's nodes ({where}); 'serve shutdown' ends it",
            flush=True,
        )
        return 0
    finally:
        ray.shutdown()


def require_listener(address: str) -> None:
    """Fail within seconds where nothing listens; Ray would try for minutes.

    Raises:
        ConfigError: it is no such address, or nothing listens there.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise ConfigError(f"--address: expected auto or HOST:PORT of a cluster's GCS, got {address!r}")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(
            f"--address: no Ray cluster at {address} ({error}); start one with 'ray start --head'"
        ) from None


def node_environments() -> dict[str, dict[str, str]]:
    """Return what each living node has of the environment that is needed, by its name."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = {}
    for node in ray.nodes():
        if node["Alive"]:
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            # By value: a node without this repository must be able to say so.
            task: Any = ray.remote(_own_environment).options(num_cpus=0, scheduling_strategy=strategy)
            asked[f"{node['NodeManagerAddress']} {node['NodeID'][:8]}"] = task.remote(PREFIXES)
    return {name: ray.get(answer, timeout=60) for name, answer in asked.items()}


def _own_environment(prefixes: tuple[str, ...]) -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def require_environment(nodes: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse a cluster where HAProxy would not run as this service needs it.

    Raises:
        ConfigError: naming the nodes.
    """
    if not nodes:
        raise ConfigError("the cluster has no living node")
    lacking = [
        name
        for name, found in nodes.items()
        if found.get("RAY_SERVE_ENABLE_HA_PROXY") != "1" or SETTINGS_ENV not in found
    ]
    if lacking:
        raise ConfigError(
            f"{len(lacking)} of {len(nodes)} nodes lack the environment ({', '.join(sorted(lacking))}): {HOW}"
        )
