"""Builders for the controller's tests: a calm replica, and what differs from it."""

from typing import Any

from controller.fleet.view import Rates, ReplicaView
from controller.messages import LatencyWindow, ReplicaSnapshot
from nestedfp.modes import DirectiveMode, Mode

CALM: dict[str, Any] = {
    "replica_id": "r0",
    "seq": 1,
    "ready": True,
    "mode": Mode.FP16,
    "directive": DirectiveMode.FP16,
    "epoch": 1,
    "lease_remaining_s": 1.9,
    "switches": 0,
    "steps_fp16": 100,
    "steps_fp8": 0,
    "tokens_fp16": 1000,
    "tokens_fp8": 0,
    "waiting": 0,
    "waiting_tokens": 0,
    "oldest_wait_s": 0.0,
    "running": 4,
    "kv_usage": 0.2,
    "arrivals": 10,
    "arrived_tokens": 500,
    "finished": 6,
    "step_ms_fp16": 15.0,
}


def make_snapshot(**overrides: Any) -> ReplicaSnapshot:
    """A ready replica that runs four requests without strain, but for ``overrides``."""
    return ReplicaSnapshot.model_validate({**CALM, **overrides})


def make_rates(**overrides: float) -> Rates:
    """1000 prompt tokens arrive and 1200 tokens are computed in FP16 each second."""
    calm = {
        "arrivals_per_s": 2.0,
        "arrived_tokens_per_s": 1000.0,
        "tokens_per_s": 1200.0,
        "queue_growth_tokens_per_s": 0.0,
    }
    return Rates(**{**calm, **overrides})


def make_view(
    *,
    rates: Rates | None = None,
    age_s: float = 0.0,
    path_age_s: float | None = None,
    **snapshot: Any,
) -> ReplicaView:
    """A view of such a replica, last heard of ``age_s`` ago."""
    return ReplicaView(
        snapshot=make_snapshot(**snapshot),
        age_s=age_s,
        rates=make_rates() if rates is None else rates,
        path_age_s=path_age_s,
    )


def window(p90_ms: float, count: int = 100) -> LatencyWindow:
    """A latency window of which only the count and the 90th percentile matter."""
    return LatencyWindow(count=count, p50_ms=p90_ms, p90_ms=p90_ms, p99_ms=p90_ms)
