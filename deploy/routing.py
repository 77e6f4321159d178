"""Routes requests pinned to FP16 to replicas that run FP16 anyway, where some replicas run FP8 and others do not.

A pinned request on a replica in FP8 forces FP16 on every step that it shares, and costs its neighbours their speed.
Replicas tell their precision through Serve's routing statistics, about a second late: a wrong guess costs speed, never
exactness.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter

from nestedfp.vllm_plugin.pin import PIN_HEADER, PIN_KEY

PRECISION_KEY = "precision"  # in the routing statistics: the directive in force on a replica
STATS_PERIOD_S = 1.0
PREFERENCE = ("fp16", "auto")  # then any

ReplicaT = TypeVar("ReplicaT")


def is_pinned(args: Sequence[Any]) -> bool:
    """Whether a call of the replica carries a request pinned to FP16: ``(body, raw request)`` as the ingress sends it.

    The body wins when it has a pin of its own, as on the replica.
    """
    body = args[0] if args else None
    pin = (getattr(body, "vllm_xargs", None) or {}).get(PIN_KEY)
    if pin is None and len(args) > 1:
        headers = getattr(args[1], "headers", None) or {}
        pin = next((value for key, value in headers.items() if key.lower() == PIN_HEADER), None)
    return pin == "fp16"


def ranked(replicas: Sequence[ReplicaT], precision: Callable[[ReplicaT], str | None]) -> list[list[ReplicaT]]:
    """The replicas in groups, the best for a pinned request first; no group is empty."""
    groups: list[list[ReplicaT]] = [[] for _ in range(len(PREFERENCE) + 1)]
    for replica in replicas:
        mode = precision(replica)
        groups[PREFERENCE.index(mode) if mode in PREFERENCE else len(PREFERENCE)].append(replica)
    return [group for group in groups if group]


class PrecisionAwareRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    """Serve's power of two choices; for pinned requests among the replicas in FP16 first."""

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any | None = None
    ) -> list[list[Any]]:
        """Return groups of at most two replicas; Serve takes the one with the shorter queue of the first that accepts."""
        if pending_request is None or not is_pinned(pending_request.args):
            chosen: list[list[Any]] = await super().choose_replicas(candidate_replicas, pending_request)
            return chosen
        groups = ranked(candidate_replicas, lambda replica: replica.routing_stats.get(PRECISION_KEY))
        return [random.sample(group, min(2, len(group))) for group in groups]
