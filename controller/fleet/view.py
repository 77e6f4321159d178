"""One replica as the controller knows it. Rates are per second of the controller's clock. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from controller.messages import ReplicaSnapshot


@dataclass(frozen=True, slots=True)
class Rates:
    """Differences of a replica's totals over a while."""

    arrivals_per_s: float  # requests
    arrived_tokens_per_s: float  # their prompt tokens
    tokens_per_s: float  # prompt and completion tokens computed
    queue_growth_tokens_per_s: float  # growth of the queue; negative when it drains
    slo_evaluated: float = 0.0  # finished requests held against the SLO, in that while
    within_slo: float = 0.0  # of them, those that met it


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as the controller knows it: the last snapshot and what follows from the ones before."""

    snapshot: ReplicaSnapshot
    age_s: float = 0.0  # since the snapshot arrived
    rates: Rates | None = None  # None: too few snapshots, or a restart
    path_age_s: float | None = None  # since the path, not the engine, last was the limit; None: never
    cold: bool = False  # computes its first requests: its steps are still slow

    @property
    def replica_id(self) -> str:
        return self.snapshot.replica_id

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits: latencies and step times say nothing about the present."""
        return self.snapshot.running == 0 and self.snapshot.waiting == 0


Replicas: TypeAlias = Sequence[ReplicaView]


def ids_of(replicas: Replicas) -> list[str]:
    """Their ids, in order."""
    return [view.snapshot.replica_id for view in replicas]
