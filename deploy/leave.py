"""``python -m deploy.leave --within SECONDS``: takes the Ray node of this machine out of the service, and no client notices it.

Ray is asked to drain the node. Ray Serve then starts a replacement of each replica on it elsewhere, lets the old one end its
streams once the new one runs, and lets this node's HAProxy end those that pass through it. This command returns when none of
them is left here: 0; or when the time is over: 1, naming what is. For a pod's preStop, before the node is ended; what is not
there then ends with it. A drain cannot be taken back: the node takes no replica any more until it has been started anew.

Ray drains by itself on SIGTERM (RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S), but waits there until no process at all works on the
node; the controller's actor, which Serve leaves where it is, does to the last.
"""

import argparse
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

WITHIN_S = 300.0  # as in k8s/: a replacement has been loaded elsewhere by then, and the longest streams have ended
LEFT_S = 15.0  # of it, that Ray is not told of: for what comes after the last stream
LOOK_EVERY_S = 1.0
RAY_TIMEOUT_S = 10.0  # for one answer of Ray's head, which comes within milliseconds


class CannotLeave(Exception):
    """There is no node here that could leave."""


class Node(NamedTuple):
    """A living Ray node: its id in hexadecimal digits, its address, whether it is the cluster's head."""

    id: str
    address: str
    head: bool


def main(argv: list[str] | None = None) -> int:
    """Leave; return the exit status."""
    from ray._private import services
    from ray._raylet import GcsClient
    from ray.exceptions import RayError

    within_s = arguments(argv).within
    until_s = time.monotonic() + within_s
    try:
        host, _, port = (address := services.canonicalize_bootstrap_address_or_die("auto")).rpartition(":")
        # First, for Ray asks for 40 s whoever is not there.
        socket.create_connection((host.strip("[]"), int(port)), RAY_TIMEOUT_S).close()
        gcs = GcsClient(address=address)  # from outside the cluster: a driver would end with the node
        node = own(living(gcs), own_addresses())
        drain(gcs, node, within_s - LEFT_S)
    except (RayError, OSError, ValueError) as error:
        print(f"error: no cluster of Ray's answers ({error}); set RAY_ADDRESS", file=sys.stderr)
        return 2
    except CannotLeave as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"node {node.id[:8]} at {node.address} leaves within {within_s:g} s", flush=True)
    return wait(lambda: remaining(gcs, node), until_s)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m deploy.leave", description=__doc__)
    parser.add_argument(
        "--within", type=float, default=WITHIN_S, help="seconds that it may take (default: %(default)g)"
    )
    args = parser.parse_args(argv)
    if not args.within > LEFT_S:
        parser.error(f"--within: expected more than {LEFT_S:g} seconds, got {args.within:g}")
    return args


def living(gcs: Any) -> list[Node]:
    """Return the living nodes of a cluster, of its ``GcsClient``."""
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    return [
        Node(node_id.hex(), info.node_manager_address, info.is_head_node)
        for node_id, info in gcs.get_all_node_info(timeout=RAY_TIMEOUT_S).items()
        if info.state == GcsNodeInfo.GcsNodeState.ALIVE
    ]


def own(nodes: Collection[Node], addresses: Collection[str]) -> Node:
    """Return the node of this machine.

    Raises:
        CannotLeave: there is none or more than one, or it is the head, without which there is no cluster.
    """
    here = [node for node in nodes if node.address in addresses]
    if len(here) != 1:
        known = ", ".join(sorted(node.address for node in nodes)) or "none"
        raise CannotLeave(
            f"expected one living Ray node at the addresses of this machine ({', '.join(sorted(addresses))}), got "
            f"{len(here)}; the cluster's nodes: {known}"
        )
    if here[0].head:
        raise CannotLeave(
            f"the node at {here[0].address} is the cluster's head, which cannot leave it; stop the cluster"
        )
    return here[0]


def own_addresses() -> set[str]:
    """Return the addresses of this machine's network interfaces, as Ray writes them."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    every = psutil.net_if_addrs().values()
    return {one.address.partition("%")[0] for each in every for one in each if one.family in families}


def drain(gcs: Any, node: Node, within_s: float) -> None:
    """Ask Ray to drain a node; Serve stops replicas that nothing has replaced in time for them to end their streams.

    Raises:
        CannotLeave: Ray refuses.
    """
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    accepted, why = gcs.drain_node(
        node.id,
        DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,  # the one that a node may not refuse
        "python -m deploy.leave",
        int((time.time() + within_s) * 1000),
        timeout=RAY_TIMEOUT_S,
    )
    if not accepted:
        raise CannotLeave(f"Ray does not drain node {node.id[:8]}: {why}")


def remaining(gcs: Any, node: Node) -> list[str]:
    """Return the names of the replicas and of the HAProxy on a node; none when the node itself has ended."""
    from ray.util.state import list_actors

    if node not in living(gcs):
        return []
    filters: Any = [("node_id", "=", node.id), ("state", "!=", "DEAD")]
    found = list_actors(address=gcs.address, filters=filters, limit=10_000, timeout=int(RAY_TIMEOUT_S))
    return serving(actor["name"] for actor in found)


def serving(names: Iterable[str]) -> list[str]:
    """Return those of the actors' names that are of replicas and of Serve's proxies, through which requests go."""
    from ray.serve._private.common import REPLICA_ID_FULL_ID_STR_PREFIX
    from ray.serve._private.constants import SERVE_PROXY_NAME

    return sorted(name for name in names if name.startswith((REPLICA_ID_FULL_ID_STR_PREFIX, SERVE_PROXY_NAME)))


def wait(left: Callable[[], list[str]], until_s: float) -> int:
    """Wait until nothing is left, to ``until_s`` of ``time.monotonic()`` at most; return the exit status."""
    there, fault = "what Ray's head did not tell", ""
    while time.monotonic() < until_s:
        try:
            if not (names := left()):
                print("left: no replica is here, and no stream", flush=True)
                return 0
            there, fault = ", ".join(names), ""
        except Exception as error:  # a head that restarts; the replicas leave without it
            fault = f" (the last look failed: {error!r})"
        time.sleep(LOOK_EVERY_S)
    print(
        f"error: the time is over, and the node still has {there}{fault}; what runs on it ends with it: start more nodes, or give "
        "it more time (--within, and the pod's terminationGracePeriodSeconds)",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
