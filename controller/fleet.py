"""What the controller knows about the replicas: the last snapshots, and the rates that their totals give. Zero I/O.

Ages count from when a snapshot arrived, by the controller's clock: replicas' clocks are never compared. Totals that
fall back, or that grow faster than any machine computes, give no rate until a window of plausible ones has passed.
"""

from collections import deque
from dataclasses import dataclass, field

from controller.policies.base import Rates, ReplicaView
from controller.schema import ReplicaSnapshot

MAX_TOKENS_PER_S = 1e7  # ten times what the largest replica of 2026 computes
MAX_ARRIVALS_PER_S = 1e6
RETIRED_KEPT = 8


@dataclass(slots=True)
class _Replica:
    """Snapshots of one replica's present incarnation, with the times they arrived."""

    received: deque[tuple[float, ReplicaSnapshot]] = field(default_factory=deque)
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=RETIRED_KEPT))  # earlier incarnations
    fp16_step_at_s: float | None = None  # when steps_fp16 was last seen to have grown

    @property
    def last(self) -> tuple[float, ReplicaSnapshot]:
        return self.received[-1]


class Fleet:
    """All replicas that have reported lately.

    Args:
        window_s: span over which rates are taken.
        forget_after_s: silence after which a replica no longer exists.
    """

    def __init__(self, window_s: float, forget_after_s: float) -> None:
        self._window_s = window_s
        self._forget_after_s = forget_after_s
        self._replicas: dict[str, _Replica] = {}

    def on_snapshot(self, now_s: float, snapshot: ReplicaSnapshot) -> bool:
        """Take a snapshot. Returns False, and keeps nothing, for a duplicate or one overtaken by a newer."""
        replica = self._replicas.setdefault(snapshot.replica_id, _Replica())
        if snapshot.incarnation in replica.retired:
            return False
        if replica.received:
            _, last = replica.last
            if last.incarnation != snapshot.incarnation:
                replica.retired.append(last.incarnation)
                replica.received.clear()
                replica.fp16_step_at_s = None
            elif snapshot.seq <= last.seq:
                return False
            elif not _grew(last, snapshot):
                replica.received.clear()
            elif snapshot.steps_fp16 > last.steps_fp16:
                replica.fp16_step_at_s = now_s
        replica.received.append((now_s, snapshot))
        # The newest snapshot from before the window is kept: it is what the window's rates count from.
        while len(replica.received) > 2 and replica.received[1][0] <= now_s - self._window_s:
            replica.received.popleft()
        return True

    def forget_silent(self, now_s: float) -> frozenset[str]:
        """Drop the replicas that have been silent for too long; return the ids of those that remain."""
        gone = [id_ for id_, replica in self._replicas.items() if now_s - replica.last[0] > self._forget_after_s]
        for id_ in gone:
            del self._replicas[id_]
        return frozenset(self._replicas)

    def views(self, now_s: float) -> tuple[ReplicaView, ...]:
        """All replicas, sorted by id."""
        return tuple(self._view(now_s, replica) for _, replica in sorted(self._replicas.items()))

    def _view(self, now_s: float, replica: _Replica) -> ReplicaView:
        (began_s, first), (arrived_s, last) = replica.received[0], replica.last
        full = arrived_s - began_s >= self._window_s / 2  # a burst of delayed snapshots spans too little to divide by
        return ReplicaView(
            snapshot=last,
            age_s=max(0.0, now_s - arrived_s),
            rates=_rates(first, last, arrived_s - began_s) if full else None,
            standing_tokens=min(snapshot.waiting_tokens for _, snapshot in replica.received) if full else 0,
            fp16_step_age_s=None if replica.fp16_step_at_s is None else max(0.0, now_s - replica.fp16_step_at_s),
        )


def _grew(before: ReplicaSnapshot, after: ReplicaSnapshot) -> bool:
    """Whether all totals are at least what they were."""
    return all(
        getattr(after, total) >= getattr(before, total)
        for total in ("tokens_fp16", "tokens_fp8", "steps_fp16", "steps_fp8", "arrivals", "arrived_tokens")
    )


def _rates(first: ReplicaSnapshot, last: ReplicaSnapshot, span_s: float) -> Rates | None:
    """Differences per second, or None when no machine could have done it."""
    rates = Rates(
        span_s=span_s,
        arrivals=(last.arrivals - first.arrivals) / span_s,
        arrived_tokens=(last.arrived_tokens - first.arrived_tokens) / span_s,
        tokens_fp16=(last.tokens_fp16 - first.tokens_fp16) / span_s,
        tokens_fp8=(last.tokens_fp8 - first.tokens_fp8) / span_s,
        waiting_tokens=(last.waiting_tokens - first.waiting_tokens) / span_s,
        steps_fp16=(last.steps_fp16 - first.steps_fp16) / span_s,
        steps_fp8=(last.steps_fp8 - first.steps_fp8) / span_s,
    )
    plausible = rates.arrivals <= MAX_ARRIVALS_PER_S and max(rates.arrived_tokens, rates.tokens) <= MAX_TOKENS_PER_S
    return rates if plausible else None
