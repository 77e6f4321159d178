"""A Ray cluster of this machine alone, for the start-up command. On Kubernetes KubeRay makes the cluster instead."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import ray
from ray import serve
from ray._private import services

from deploy.config import DeployConfig
from deploy.replica.drain import LAST_WORDS_S

OBJECT_STORE_BYTES = 200 << 20  # nothing large travels between processes
BEGINS_S = 2.0  # within which Serve has replicas leave that it was asked to delete


def start_cluster(config: DeployConfig, folder: Path, verbose: bool) -> None:
    """Start Ray and Serve with HAProxy, on loopback unless the configuration names another address.

    Ray's session, with the logs of all processes, goes to ``folder``, whose path must be short: there are sockets in it.
    """
    if not verbose:
        for name in ("ray.serve", "httpx"):
            logging.getLogger(name).setLevel(logging.WARNING)
    ranks = config.most_replicas * config.engine.ranks
    with kept_on_loopback():
        ray.init(
            address="local",  # never attach to somebody else's cluster
            # Bookkeeping: replicas and ranks need a slot each. Without slots for them, replicas asked for later never start.
            num_cpus=max(os.cpu_count() or 1, config.most_replicas + ranks + 2),
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=verbose,
            logging_level=logging.INFO if verbose else logging.ERROR,
        )
    serve.start(
        http_options={"host": config.http.host, "port": config.http.port},
        logging_config={"enable_access_log": False},
    )


@contextlib.contextmanager
def kept_on_loopback() -> Iterator[None]:
    """Have Ray take 127.0.0.1 as the node's address while it starts, so that its own servers listen there.

    Ray replaces it by an address that other machines reach, and then listens on all interfaces. What still listens on all
    interfaces then is one gRPC port of each Serve replica, which Serve binds so whatever it is told.
    """
    found = services.resolve_ip_for_localhost
    services.resolve_ip_for_localhost = lambda host: host
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = found


def stop_cluster(application: str, drain_s: float) -> None:
    """Let the streams of an application end, then end every process of the cluster; nothing happens where none was started.

    Nothing is printed meanwhile: Ray tells of each actor that it ends as of a worker that died of an unexpected error.
    """
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        if ray.is_initialized():
            with contextlib.suppress(Exception):  # Serve may not have come up
                # First the replicas alone: a shutdown of Serve ends HAProxy at once, and every stream with it. New
                # requests they take for a while (deploy/replica/drain.py); then HAProxy answers with 503. Serve waits for a
                # minute at a time.
                deadline_s, deleted = time.monotonic() + BEGINS_S + drain_s + LAST_WORDS_S, False
                while not deleted and time.monotonic() <= deadline_s:
                    with contextlib.suppress(TimeoutError):
                        serve.delete(application)
                        deleted = True
            with contextlib.suppress(Exception):
                serve.shutdown()
        ray.shutdown()
