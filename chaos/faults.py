"""The faults: a kind of process, and what is done to it; when that began and ended."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial

from chaos.fault_cost import Injection
from chaos.watch import SEVERAL, Family, running

NOTICE_LIMIT_S = 60.0  # a stopped process that nobody has ended by then is continued


def victims_of(family: Family, kind: str) -> list[int]:
    """Return the processes that a fault of this kind hits: one, where each replica has its own, else all.

    Raises:
        RuntimeError: there is none.
    """
    found = sorted(family.look().alive[kind])
    if not found:
        raise RuntimeError(f"the service has no process of the kind {kind!r}")
    return found[:1] if kind in SEVERAL else found


def kill(kind: str, family: Family) -> Injection:
    """End processes without a warning."""
    victims = victims_of(family, kind)
    began_s = time.monotonic()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    return Injection(began_s, began_s)


def stop(kind: str, family: Family, for_s: float = NOTICE_LIMIT_S) -> Injection:
    """Have processes stand still for so long, or until the service has ended them."""
    victims = victims_of(family, kind)
    began_s = time.monotonic()
    try:
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        while any(map(running, victims)) and time.monotonic() - began_s < for_s:
            time.sleep(0.05)
        ended_by_service = not any(map(running, victims))
    finally:
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return Injection(began_s, began_s if ended_by_service else time.monotonic())


# From what costs a service least to what costs it most. The GCS is not killed: without a Redis beside it a cluster of one
# machine ends with it.
FAULTS: Mapping[str, Callable[[Family], Injection]] = {
    "controller killed": partial(kill, "controller"),
    "controller cut off": partial(stop, "controller", for_s=8.0),
    "controller stopped": partial(stop, "controller"),
    "control routes killed": partial(kill, "control_routes"),
    "control routes stopped": partial(stop, "control_routes"),
    "HAProxy killed": partial(kill, "haproxy"),
    "HAProxy stopped": partial(stop, "haproxy"),
    "HAProxy manager killed": partial(kill, "proxy_manager"),
    "Serve controller killed": partial(kill, "serve_controller"),
    "GCS stopped for 10 s": partial(stop, "gcs", for_s=10.0),
    "engine killed": partial(kill, "engine"),
    "engine stopped": partial(stop, "engine"),
    "replica killed": partial(kill, "replica"),
    "replica stopped": partial(stop, "replica"),
}
