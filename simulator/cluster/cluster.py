"""The event loop: requests, snapshots, directives and decisions in the order of simulated time.

It drives the live ``ControlLoop`` as the live actor does: it reads the (simulated) clock, hands in snapshots and
acknowledgements, calls ``step`` when the loop asked for it, and carries out the effects over the simulated network.
Engines are advanced lazily, when something looks at them or changes them; so a step costs no event.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from controller.audit import DecisionRecord
from controller.config import RENEW_S, REPORT_PERIOD_S, STEP_PERIOD_S, ControllerConfig
from controller.decide.loop import ControlLoop
from controller.messages import Directive, DirectiveAck, ReplicaSnapshot
from nestedfp.modes import DirectiveMode
from simulator.cluster.network import Network
from simulator.cluster.replica import Replica
from simulator.cluster.routing import LeastConnections
from simulator.cluster.scenario import Scenario
from simulator.engine.cost_table import EngineTable
from simulator.engine.request import SimRequest
from simulator.errors import SimulationError

LATE = 2.0  # times RENEW_S: a call without an answer, as in the agent
LONGEST_DRAIN_S = 7 * 86400.0  # a queue that lasts longer is a fault of the simulator


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
        observe_every_s: float = 0.5,
    ) -> None:
        self._table, self._config, self._scenario = table, config, scenario
        self.loop = ControlLoop(config)
        self._network = Network(scenario.seed)
        self._proxy = LeastConnections(scenario.max_replicas or scenario.replicas)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._events_made = 0
        self._told_epoch = 0
        self._waiting: dict[str, tuple[Replica, int]] = {}  # a replica's call, by the replica's name: its number
        self._everyone: list[Replica] = []
        self.present: dict[str, Replica] = {}
        self._present_since_s: dict[Replica, float] = {}
        self._replica_s = 0.0
        self.records: list[DecisionRecord] = []
        self.desired_replicas: int | None = None
        self._observe, self._observe_every_s = observe, observe_every_s
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
        self._at(now_s + self._network.delay_s(), self._snapshot_arrives, replica, snapshot)

    def _snapshot_arrives(self, now_s: float, replica: Replica, snapshot: ReplicaSnapshot) -> None:
        new = self.loop.directive_for(replica.name) is None
        self.loop.on_snapshot(now_s, snapshot)
        self._tell(now_s, replica.name if new else None)

    # -- a replica waits in a call for the next directive, as live (controller/live/delivery.py) -----------------------

    def _call(self, now_s: float, replica: Replica, ack: DirectiveAck | None) -> None:
        """A replica asks, and asks again where no answer comes."""
        if replica.gone:
            return
        replica.calls += 1
        self._at(now_s + self._network.delay_s(), self._call_arrives, replica, replica.calls, replica.seen, ack)
        self._at(now_s + LATE * RENEW_S, self._late, replica, replica.calls)

    def _late(self, now_s: float, replica: Replica, call: int) -> None:
        if replica.calls == call:
            self._call(now_s, replica, None)

    def _call_arrives(
        self, now_s: float, replica: Replica, call: int, seen: str | None, ack: DirectiveAck | None
    ) -> None:
        if replica.gone:
            return
        if ack is not None:
            self.loop.on_ack(now_s, ack)
            self._tell(now_s)
        older = self._waiting.pop(replica.name, None)
        self._waiting[replica.name] = replica, call
        if older is not None or (seen != self._token and self.loop.directive_for(replica.name) is not None):
            self._answer(now_s, replica.name)
        else:
            self._at(now_s + RENEW_S, self._renew, replica, call)

    def _renew(self, now_s: float, replica: Replica, call: int) -> None:
        if self._waiting.get(replica.name) == (replica, call):
            self._answer(now_s, replica.name)

    def _tell(self, now_s: float, newcomer: str | None = None) -> None:
        if self.loop.epoch != self._told_epoch:
            self._told_epoch = self.loop.epoch
            for name in list(self._waiting):
                self._answer(now_s, name)
        elif newcomer in self._waiting:
            self._answer(now_s, newcomer)

    def _answer(self, now_s: float, name: str) -> None:
        replica, call = self._waiting.pop(name)
        directive = self.loop.directive_for(name)
        self._at(now_s + self._network.delay_s(), self._directive_arrives, replica, call, self._token, directive)

    @property
    def _token(self) -> str:
        return str(self.loop.epoch)

    def _directive_arrives(
        self, now_s: float, replica: Replica, call: int, token: str, directive: Directive | None
    ) -> None:
        if replica.gone:
            return
        ack = None
        if directive is not None:
            replica.seen, ack = token, replica.take(now_s, directive)
        if replica.calls == call:  # and not the copy of an answer
            self._call(now_s, replica, ack)

    def _step(self, now_s: float) -> None:
        """The controller decides."""
        effects = self.loop.step(now_s)
        self._at(effects.next_step_at_s, self._step)
        self._tell(now_s)
        if effects.record is not None:
            self.records.append(effects.record)
        self.desired_replicas = effects.desired_replicas
        if self._scenario.max_replicas is not None:
            self._scale(now_s, effects.desired_replicas)

    def _sample(self, now_s: float) -> None:
        assert self._observe is not None, "only planned with an observer"
        self._samples.append(self._observe(now_s, self))
        self._at(now_s + self._observe_every_s, self._sample)

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
        self._at(now_s + report_in_s, self._call, replica, None)

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
