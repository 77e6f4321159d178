"""What the controller knows about the replicas: the last snapshots, and the rates that their totals give. Zero I/O.

Ages count from when a snapshot arrived, by the controller's clock: replicas' clocks are never compared.

Work is done when a snapshot arrives, in constant time on average; looking at a replica costs the same however long the
window is.
"""

from collections import deque
from dataclasses import dataclass, field

from controller.fleet.path_limit import path_saturated
from controller.fleet.view import Rates, Replicas, ReplicaView
from controller.messages import ReplicaSnapshot
from workload.slo import USUAL_SLO, Slo

RATE_WINDOW_S = 1.0  # span over which arrival and token rates are taken
FORGET_AFTER_S = 10.0  # silence after which a replica no longer exists
WARM_STEPS = 16  # of a fresh engine: the first ones load and compile, and the EWMA step time must forget them
COLD_AT_MOST_S = 10.0  # of work: an engine that has not made so many steps by then is slow, not cold
_set = object.__setattr__


@dataclass(slots=True)
class _Replica:
    """Snapshots of one replica, with the times they arrived."""

    received: deque[tuple[float, ReplicaSnapshot]] = field(default_factory=deque)
    first_steps: int | None = None  # counted when it was first heard of
    busy_since_s: float | None = None  # when it was first seen to have work
    cold: bool = True
    path_at_s: float | None = None  # when the path, not the engine, was last seen to be the limit
    rates: Rates | None = None
    refused_per_s: float = 0.0
    view: ReplicaView | None = None  # of the newest; None: until the first is taken
    arrived_s: float = 0.0  # of that snapshot

    def view_at(self, now_s: float) -> ReplicaView:
        """The view with its ages of now."""
        view = self.view
        assert view is not None, "a replica is known by its first snapshot"
        # Making a frozen view anew for every step would take longer than the rest of the step.
        _set(view, "age_s", now_s - self.arrived_s)
        if self.path_at_s is not None:
            _set(view, "path_age_s", now_s - self.path_at_s)
        return view

    def take(self, now_s: float, snapshot: ReplicaSnapshot, slo: Slo) -> None:
        received = self.received
        received.append((now_s, snapshot))
        # The newest snapshot from before the window is kept: it is what the window's rates count from.
        while len(received) > 2 and received[1][0] <= now_s - RATE_WINDOW_S:
            received.popleft()
        began_s, first = received[0]
        span_s = now_s - began_s
        full = span_s >= RATE_WINDOW_S / 2  # a burst of delayed snapshots spans too little to divide by
        self.rates = _rates(first, snapshot, span_s) if full else None
        self.refused_per_s = max(0, snapshot.refused - first.refused) / span_s if full else 0.0
        self.arrived_s = now_s
        if self.cold:
            self._warm_up(now_s, snapshot)
        self.view = ReplicaView(
            snapshot,
            rates=self.rates,
            cold=self.cold and snapshot.running + snapshot.waiting > 0,
            path_age_s=None if self.path_at_s is None else now_s - self.path_at_s,
        )
        if snapshot.path is not None and path_saturated(self.view, slo):
            self.path_at_s = now_s
            _set(self.view, "path_age_s", 0.0)

    def _warm_up(self, now_s: float, snapshot: ReplicaSnapshot) -> None:
        steps = snapshot.steps_fp16 + snapshot.steps_fp8 + snapshot.steps_mixed
        if self.first_steps is None:
            self.first_steps = steps
        if self.busy_since_s is None and snapshot.running + snapshot.waiting > 0:
            self.busy_since_s = now_s
        lasted = self.busy_since_s is not None and now_s - self.busy_since_s >= COLD_AT_MOST_S
        self.cold = not lasted and steps - self.first_steps < WARM_STEPS


class Fleet:
    """All replicas that have reported lately; by the SLO the delays of a path count as long."""

    def __init__(self, slo: Slo = USUAL_SLO) -> None:
        self.slo = slo
        self._replicas: dict[str, _Replica] = {}
        self._in_order: list[_Replica] | None = None  # by id; None: to be sorted anew

    def __len__(self) -> int:
        return len(self._replicas)

    def __contains__(self, replica_id: object) -> bool:
        return replica_id in self._replicas

    @property
    def ids(self) -> frozenset[str]:
        """The replicas known."""
        return frozenset(self._replicas)

    def on_snapshot(self, now_s: float, snapshot: ReplicaSnapshot) -> bool:
        """Take a snapshot; return False for a duplicate, or one that a newer one has overtaken: nothing is kept of it."""
        replica = self._replicas.get(snapshot.replica_id)
        if replica is None:
            replica = self._replicas[snapshot.replica_id] = _Replica()
            self._in_order = None
        elif snapshot.seq <= replica.received[-1][1].seq:
            return False
        replica.take(now_s, snapshot, self.slo)
        return True

    def forget_silent(self, now_s: float) -> bool:
        """Drop the replicas that have been silent for too long; return whether there were any."""
        oldest_s = now_s - FORGET_AFTER_S
        gone = [id_ for id_, replica in self._replicas.items() if replica.arrived_s < oldest_s]
        for id_ in gone:
            del self._replicas[id_]
            self._in_order = None
        return bool(gone)

    def views(self, now_s: float) -> Replicas:
        """All replicas, sorted by id. Good until the next call: their ages go on."""
        if self._in_order is None:
            self._in_order = [self._replicas[replica_id] for replica_id in sorted(self._replicas)]
        return tuple([replica.view_at(now_s) for replica in self._in_order])

    def offered_over_admitted(self) -> float:
        """Requests that came / requests that were let in, over the window; 1 when none was refused."""
        refused = sum(replica.refused_per_s for replica in self._replicas.values())
        if not refused:
            return 1.0
        admitted = sum(replica.rates.arrivals_per_s for replica in self._replicas.values() if replica.rates is not None)
        return (admitted + refused) / max(admitted, 1e-3)


def _rates(first: ReplicaSnapshot, last: ReplicaSnapshot, span_s: float) -> Rates:
    return Rates(
        arrivals_per_s=(last.arrivals - first.arrivals) / span_s,
        arrived_tokens_per_s=(last.arrived_tokens - first.arrived_tokens) / span_s,
        tokens_per_s=(last.tokens_fp16 + last.tokens_fp8 - first.tokens_fp16 - first.tokens_fp8) / span_s,
        queue_growth_tokens_per_s=(last.waiting_tokens - first.waiting_tokens) / span_s,
        slo_evaluated=last.slo_evaluated - first.slo_evaluated,
        within_slo=last.within_slo - first.within_slo,
    )
