"""Tells a snapshot that can be true from one that cannot, so that no mode changes on garbage. Pure.

The schema refuses what no snapshot may say (negative, NaN). Here are values that are possible in themselves, but not on a
machine, or not after what the replica said before. A refused snapshot is no evidence: its replica counts as silent.
"""

from controller.messages import LatencyWindow, ReplicaSnapshot

MAX_WAIT_S = 3600.0  # clients and proxies have long given up
MAX_STEP_MS = 600_000.0
MAX_LATENCY_MS = 3_600_000.0
MAX_REQUESTS = 1_000_000
MAX_QUEUED_TOKENS = 10**10
WAIT_JUMP_S = 5.0  # a wait grows as fast as time does; more than this beyond it is a clock that was set


def fault(snapshot: ReplicaSnapshot) -> str | None:
    """What cannot be true in a snapshot by itself; None when nothing."""
    if snapshot.oldest_wait_s > MAX_WAIT_S:
        return f"oldest_wait_s={snapshot.oldest_wait_s:g} is above {MAX_WAIT_S:g}"
    if snapshot.ready_for_s is not None and snapshot.oldest_wait_s > snapshot.ready_for_s + WAIT_JUMP_S:
        return (
            f"oldest_wait_s={snapshot.oldest_wait_s:g} on a replica that has been ready for {snapshot.ready_for_s:g} s"
        )
    if max(snapshot.waiting, snapshot.running) > MAX_REQUESTS or snapshot.waiting_tokens > MAX_QUEUED_TOKENS:
        return f"waiting={snapshot.waiting}, running={snapshot.running}, waiting_tokens={snapshot.waiting_tokens}"
    if max(snapshot.step_ms_fp16 or 0.0, snapshot.step_ms_fp8 or 0.0) > MAX_STEP_MS:
        return f"step_ms_fp16={snapshot.step_ms_fp16}, step_ms_fp8={snapshot.step_ms_fp8}"
    return _window_fault("ttft", snapshot.ttft) or _window_fault("tpot", snapshot.tpot)


def possible_wait(before: ReplicaSnapshot, after: ReplicaSnapshot, elapsed_s: float) -> ReplicaSnapshot:
    """The snapshot, its oldest wait no longer than it can have become in the ``elapsed_s`` since the one before.

    A request that was preempted waits again, and may tell the time since its arrival: then the wait counts from when it
    was first seen. A wait that nothing waits for stays as it is: that is no wait but a fault.
    """
    possible_s = before.oldest_wait_s + elapsed_s
    if after.waiting == 0 or after.oldest_wait_s <= possible_s + WAIT_JUMP_S or after.oldest_wait_s > MAX_WAIT_S:
        return after
    return after.model_copy(update={"oldest_wait_s": possible_s})


def wait_fault(before: ReplicaSnapshot, after: ReplicaSnapshot, elapsed_s: float) -> str | None:
    """What cannot follow: a wait that has grown by more than the ``elapsed_s`` between the two arrivals."""
    possible_s = before.oldest_wait_s + elapsed_s + WAIT_JUMP_S
    if after.oldest_wait_s <= possible_s:
        return None
    return f"oldest_wait_s={after.oldest_wait_s:g} after {before.oldest_wait_s:g} {elapsed_s:g} s before"


def _window_fault(name: str, window: LatencyWindow) -> str | None:
    if window.count and not window.p50_ms <= window.p90_ms <= window.p99_ms <= MAX_LATENCY_MS:
        return f"{name}: p50={window.p50_ms:g}, p90={window.p90_ms:g}, p99={window.p99_ms:g} ms"
    return None
