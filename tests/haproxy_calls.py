"""Requests to an HAProxy that a test runs in front of replicas of its own."""

import contextlib
import http.client
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from haproxy_run import Node, Replica, running
from live_service import wait_until

from deploy.haproxy.haproxy_config import Limits

APP, CONTROL = "nestedfp-app", "nestedfp-control"


def in_front(
    folder: Path, app: Sequence[Replica], control: Sequence[Replica] = (), limits: Limits | None = None
) -> AbstractContextManager[tuple[Node, int]]:
    """HAProxy in front of replicas; wait for it with ``up``."""
    backends = {APP: ("/", [replica.port for replica in app])}
    if control:
        backends[CONTROL] = ("/control", [replica.port for replica in control])
    return running(folder, backends, limits)


def ask(
    port: int,
    path: str = "/v1",
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
) -> tuple[int, dict[str, str], bytes]:
    """(status, headers with lower-case names, body) of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def answers(port: int, path: str = "/v1") -> bool:
    """Whether a request is answered by a replica."""
    try:
        return ask(port, path)[0] == 200
    except OSError:
        return False


def says(port: int, text: bytes) -> bool:
    """Whether a request is answered so."""
    with contextlib.suppress(OSError, http.client.HTTPException):  # the port changes hands
        return ask(port)[2] == text
    return False


def refuses(port: int) -> bool:
    """Whether HAProxy says itself that there is no replica. It may learn that from a connection that it had kept to one."""
    with contextlib.suppress(OSError):  # which cuts off the client without a word
        return ask(port)[0] == 503
    return False


def up(port: int, path: str = "/v1") -> None:
    """Wait until a replica answers through HAProxy."""
    assert wait_until(lambda: answers(port, path), 20, 0.05), "HAProxy does not answer"


def count(replica: Replica, path: str) -> int:
    """How often a replica was asked for a path."""
    return sum(seen == path for seen, _ in replica.seen)
