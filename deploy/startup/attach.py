"""``python -m deploy.serve --address ADDRESS``: starts the applications on a Ray cluster that runs already, and returns.

They stay until ``serve shutdown``. The nodes must have been started in the environment that ``python -m deploy.environment``
prints, because Ray Serve reads it when its processes start; every node is asked before anything is deployed.
"""

import os
import re
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from deploy.config import ConfigError, DeployConfig
from deploy.haproxy.haproxy_config import CONTROL_PREFIX
from deploy.haproxy.launcher import SETTINGS_ENV

WORD = re.compile(r"[A-Za-z0-9_-]+")
PREFIXES = ("RAY_SERVE_", SETTINGS_ENV)
CONNECT_TIMEOUT_S = 5.0
HOW = "start every node in the environment that 'python -m deploy.environment --config FILE' prints"


def run(config: DeployConfig, path: Path, address: str, name: str, route_prefix: str) -> int:
    """Deploy both applications, or bring those of this name up to date; return when all replicas answer.

    Args:
        config: of the service.
        path: where it came from, the same on every node.
        address: of the cluster as ``ray.init`` takes it: ``auto``, or ``HOST:PORT`` of its GCS.
        name: of the application with the replicas.
        route_prefix: where it is mounted.

    Raises:
        ConfigError: a node lacks the environment, the address is none, or another application is mounted there.
        ConnectionError: there is no cluster at the address.
    """
    require_words(name, route_prefix)
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

        from deploy.app import applications, control_name

        require_place(mounted(), (name, control_name(name)), route_prefix)
        serve.start(
            proxy_location="EveryNode",
            http_options={"host": config.http.host, "port": config.http.port},
            logging_config={"enable_access_log": False},
        )
        serve.run_many(applications(config, path, name, route_prefix))
        where = ", ".join(sorted(nodes))
        at = "" if route_prefix == "/" else f", below {route_prefix}"
        print(
            f"ready on port {config.http.port} of the cluster's nodes ({where}){at}; 'serve shutdown' ends it",
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


def require_words(name: str, route_prefix: str) -> None:
    """Refuse what Ray's names of actors, or HAProxy, could not tell from the rest.

    Raises:
        ConfigError: the name is no word, or the prefix neither ``/`` nor a slash and a word, or several of these.
    """
    if not WORD.fullmatch(name):
        raise ConfigError(f"--application: expected letters, digits, - and _, got {name!r}")
    if route_prefix != "/" and not (
        route_prefix.startswith("/") and all(WORD.fullmatch(part) for part in route_prefix[1:].split("/"))
    ):
        raise ConfigError(f"--route-prefix: expected / or /NAME of letters, digits, - and _, got {route_prefix!r}")


def mounted() -> dict[str, str]:
    """Return the names of the applications on the cluster by their route prefix; none where Serve does not run."""
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return {}
    found: dict[str, dict[str, Any]] = client.get_serve_details()["applications"]
    return {each["route_prefix"]: name for name, each in found.items() if each.get("route_prefix")}


def require_place(taken: Mapping[str, str], own: Collection[str], route_prefix: str) -> None:
    """Refuse a place that another application has, whose requests would be answered by the wrong one.

    Args:
        taken: names of applications by their route prefix.
        own: names that are to be deployed.
        route_prefix: where.

    Raises:
        ConfigError: naming who has it.
    """
    for prefix in (route_prefix, route_prefix.rstrip("/") + CONTROL_PREFIX):
        if (holder := taken.get(prefix)) is not None and holder not in own:
            raise ConfigError(
                f"the application {holder!r} is at {prefix} on this cluster already: set --application {holder} to bring it up "
                "to date, or another --route-prefix beside it"
            )


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
