"""The event loop: requests, snapshots, directives and decisions in the order of simulated time.

It drives the live ``ControlLoop`` as the live actor does: it reads the (simulated) clock, hands in snapshots and
acknowledgements, calls ``step`` when the loop asked for it, and carries out the effects over the simulated network.
Engines are advanced lazily, when something looks at them or changes them; so a step costs no event.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import log
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from controller.audit import DecisionRecord
from controller.config import RENEW_S, REPORT_PERIOD_S, STEP_PERIOD_S, ControllerConfig
from controller.decide.loop import ControlLoop
from controller.messages import Directive, DirectiveAck, ReplicaSnapshot
from nestedfp.modes import DirectiveMode
from simulator.cluster.replica import Replica
from simulator.cluster.routing import LeastConnections
from simulator.engine.cost_table import EngineTable
from simulator.engine.request import SimRequest
from simulator.errors import SimulationError
from workload.frozen import FrozenModel

OBSERVE_S = 0.5  # between two looks of an observer
LONGEST_DRAIN_S = 7 * 86400.0  # a queue that lasts longer is a fault of the simulator
DELAY_BLOCK = 4096  # random numbers drawn at a time
DELAY_S = 1e-3  # median, of a message between controller and replica: calls between processes of one cluster
DELAY_SPREAD = 2.0  # 84th percentile of the delay over its median
Seconds = Annotated[float, Field(ge=0)]


class Scenario(FrozenModel):
    """One simulated cluster."""

    replicas: Annotated[int, Field(ge=1)] = 1
    max_replicas: Annotated[int, Field(ge=1)] | None = None  # of the autoscaler; None: it may not add any
    cold_start_s: Seconds = 60.0  # until an added replica serves
    admission_limit: Annotated[int, Field(ge=1)] | None = None  # sequences inside a replica
    rest_s: Seconds = 0.0  # before the first request
    pinned_share: Annotated[float, Field(ge=0, le=1)] = 0.0  # of the requests demand exact FP16
    seed: Annotated[int, Field(ge=0)] = 0


@dataclass(slots=True)
class RunResult:
    """What a simulation leaves behind."""

    requests: Sequence[SimRequest]
    replicas: list[Replica]  # all that there were
    records: list[DecisionRecord]
    ended_s: float  # simulated
    replica_s: float = 0.0  # time that replicas were there
    samples: list[Any] = field(default_factory=list)  # of the observer


class Cluster:
    """N replicas, one controller, one stream of requests."""

    def __init__(
        self,
        table: EngineTable,
        config: ControllerConfig,
        scenario: Scenario,
        observe: Callable[[float, "Cluster"], Any] | None = None,
    ) -> None:
        self._table, self._config, self._scenario = table, config, scenario
        self.loop = ControlLoop(config)
        self._delays_s = delays_s(scenario.seed)
        self._proxy = LeastConnections(scenario.max_replicas or scenario.replicas)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._events_made = 0
        self._told_epoch = 0
        self._everyone: list[Replica] = []
        self.present: dict[str, Replica] = {}
        self._present_since_s: dict[Replica, float] = {}
        self._replica_s = 0.0
        self.records: list[DecisionRecord] = []
        self._observe = observe
        self._samples: list[Any] = []

    def run(self, requests: Sequence[SimRequest]) -> RunResult:
        """Simulate until every request is answered or rejected. ``requests`` are in order of arrival."""
        count = self._scenario.replicas
        for number in range(count):
            # Snapshots spread over the period, as those of processes that started by themselves.
            self._start_replica(0.0, 0.0, REPORT_PERIOD_S * number / count)
        self._at(0.0, self._step)
        if self._observe is not None:
            self._at(0.0, self._sample)
        events, now_s = self._events, 0.0
        for request in requests:
            if events[0][0] <= request.arrived_s:
                self._play(request.arrived_s)
            now_s = request.arrived_s
            if request.prompt_tokens + request.output_tokens > self._table.engine.longest_tokens:
                request.outcome = "refused"
            elif not self._proxy.send(now_s, request):
                request.outcome = "shed"
        last_arrival_s = now_s
        while any(replica.engine.busy for replica in self.present.values()):
            now_s = self._play(events[0][0] + STEP_PERIOD_S)
            for replica in self.present.values():
                replica.advance(now_s)
            if now_s > last_arrival_s + LONGEST_DRAIN_S:
                raise SimulationError(f"requests are still running {LONGEST_DRAIN_S:g} s after the last arrival")
        for since_s in self._present_since_s.values():
            self._replica_s += now_s - since_s
        return RunResult(requests, self._everyone, self.records, now_s, self._replica_s, self._samples)

    def _play(self, until_s: float) -> float:
        """Carry out the events up to a time, of which there is one at least; return the time of the last."""
        events = self._events
        while events[0][0] <= until_s:
            now_s, _, action, arguments = heappop(events)
            action(now_s, *arguments)
        return now_s

    # -- events --------------------------------------------------------------------------------------------------------

    def _at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self._events_made += 1
        heappush(self._events, (at_s, self._events_made, action, arguments))

    def _report(self, now_s: float, replica: Replica) -> None:
        """A replica sends its snapshot."""
        if replica.gone:
            return
        self._at(now_s + REPORT_PERIOD_S, self._report, replica)
        snapshot = replica.snapshot(now_s)
        self._proxy.report(now_s, replica, snapshot.directive is DirectiveMode.FP16, snapshot.room)
        if replica.draining and not replica.engine.busy:
            self._remove(now_s, replica)
            return
        self._at(now_s + next(self._delays_s), self._snapshot_arrives, replica, snapshot)

    def _snapshot_arrives(self, now_s: float, replica: Replica, snapshot: ReplicaSnapshot) -> None:
        new = self.loop.directive_for(replica.name) is None
        self.loop.on_snapshot(now_s, snapshot)
        if new:
            self._renew(now_s, replica)
        self._tell(now_s)

    # -- directives: at once when there is another one, else before the lease ends (controller/live/delivery.py) --------

    def _tell(self, now_s: float) -> None:
        if self.loop.epoch != self._told_epoch:
            self._told_epoch = self.loop.epoch
            for replica in self.present.values():
                self._send(now_s, replica)

    def _renew(self, now_s: float, replica: Replica) -> None:
        if not replica.gone:
            self._send(now_s, replica)
            self._at(now_s + RENEW_S, self._renew, replica)

    def _send(self, now_s: float, replica: Replica) -> None:
        if (directive := self.loop.directive_for(replica.name)) is not None:
            self._at(now_s + next(self._delays_s), self._directive_arrives, replica, directive)

    def _directive_arrives(self, now_s: float, replica: Replica, directive: Directive) -> None:
        if not replica.gone:
            self._at(now_s + next(self._delays_s), self._ack_arrives, replica.take(now_s, directive))

    def _ack_arrives(self, now_s: float, ack: DirectiveAck) -> None:
        self.loop.on_ack(now_s, ack)
        self._tell(now_s)

    def _step(self, now_s: float) -> None:
        """The controller decides."""
        effects = self.loop.step(now_s)
        self._at(effects.next_step_at_s, self._step)
        self._tell(now_s)
        if effects.record is not None:
            self.records.append(effects.record)
        if self._scenario.max_replicas is not None:
            self._scale(now_s, effects.desired_replicas)

    def _sample(self, now_s: float) -> None:
        assert self._observe is not None, "only planned with an observer"
        self._samples.append(self._observe(now_s, self))
        self._at(now_s + OBSERVE_S, self._sample)

    # -- replicas that come and go -------------------------------------------------------------------------------------

    def _start_replica(self, now_s: float, ready_in_s: float, report_in_s: float = 0.0) -> None:
        replica = Replica(
            f"replica-{len(self._everyone):05d}",  # no other has ever had this name, as under Serve
            self._table,
            self._config,
            now_s + ready_in_s,
            self._scenario.admission_limit,
        )
        self._everyone.append(replica)
        self.present[replica.name] = replica
        self._present_since_s[replica] = now_s
        if ready_in_s > 0:
            self._at(now_s + ready_in_s, self._begin_serving, replica)
        else:
            self._begin_serving(now_s, replica)
        self._at(now_s + report_in_s, self._report, replica)

    def _begin_serving(self, now_s: float, replica: Replica) -> None:
        if not replica.gone and not replica.draining:
            self._proxy.add(replica)

    def _remove(self, now_s: float, replica: Replica) -> None:
        replica.gone = True
        del self.present[replica.name]
        self._replica_s += now_s - self._present_since_s.pop(replica)
        self._proxy.remove(replica)

    def _scale(self, now_s: float, desired: int | None) -> None:
        """Ray Serve's autoscaler, without its delays: replicas are asked for at once and serve after a cold start."""
        most, fewest = self._scenario.max_replicas or 0, self._scenario.replicas
        target = fewest if desired is None else min(max(desired, fewest), most)
        staying = [replica for replica in self.present.values() if not replica.draining]
        for _ in range(target - len(staying)):
            self._start_replica(now_s, self._scenario.cold_start_s)
        for replica in staying[target:]:
            replica.draining = True
            self._proxy.remove(replica)


def delays_s(seed: int) -> Iterator[float]:
    """Yield the delay of each message between controller and replicas, log-normal, so that messages overtake each other."""
    rng = np.random.default_rng([0x4E37, seed])
    while True:
        yield from reversed((DELAY_S * np.exp(log(DELAY_SPREAD) * rng.standard_normal(DELAY_BLOCK))).tolist())
