"""One simulated replica: an engine, and the agent that sends its snapshots and follows directives. Pure.

The agent is the live one in simulated time: the same follower, the same snapshot, directives put in force between two
steps, and the lease looked at whenever a snapshot is made.
"""

from math import floor

from controller.config import ControllerConfig
from controller.messages import Directive, DirectiveAck, ReplicaSnapshot
from controller.protocol import DirectiveFollower
from nestedfp.modes import DirectiveMode
from simulator.engine.cost_table import EngineTable
from simulator.engine.engine import Engine
from simulator.engine.path_queue import PathCost, ServedEngine
from simulator.engine.request import SimRequest

SEQUENCES_IN_QUEUE = 4  # without a configured limit, the scale counts from this many times the sequences


class Replica:
    """One incarnation of a replica; a restart makes a new object.

    Args:
        name: the replica's id.
        incarnation: differs between the restarts of one replica.
        table: what the engine is like.
        config: of the controller, for the fallback and the SLO.
        ready_at_s: end of the warm-up; no request comes before.
        admission_limit: ongoing requests above which new ones are rejected; None: no limit until the controller
            lowers the admission scale.
        path: what the processes in front of the engine cost; None: nothing.
    """

    def __init__(
        self,
        name: str,
        incarnation: str,
        table: EngineTable,
        config: ControllerConfig,
        ready_at_s: float = 0.0,
        admission_limit: int | None = None,
        path: PathCost | None = None,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self._served = None if path is None else ServedEngine(table, path)
        self.engine = self._served or Engine(table)
        self.ready_at_s = ready_at_s
        self.gone = False  # failed or retired: messages to it are lost
        self.draining = False  # gets no new requests, and goes when the last is answered
        self.refused = 0
        self.directive_changes = 0  # between one directive and the next; lapses are no decision
        self._limit = admission_limit
        self._max_seqs = table.engine.max_num_seqs
        self._admission_scale = 1.0
        self._slo_ms = (config.slo.ttft_ms, config.slo.tpot_ms)
        self._follower = DirectiveFollower(name, *config.lapsed)
        self._directed: DirectiveMode | None = None
        self._seq = 0
        self._slo_evaluated = 0
        self._within_slo = 0
        self._put_in_force(0.0)

    @property
    def admission_limit(self) -> int | None:
        """Requests inside at most, as the live replica's admission control; None: no limit."""
        if self._limit is None and self._admission_scale >= 1.0:
            return None
        return max(1, floor(self._whole_limit * self._admission_scale))

    @property
    def _whole_limit(self) -> int:
        return self._limit or SEQUENCES_IN_QUEUE * self._max_seqs

    def offer(self, now_s: float, request: SimRequest) -> bool:
        """Give a request to the engine, or reject it (False) because of the admission limit."""
        engine = self.engine
        engine.advance(now_s)
        limit = self.admission_limit
        if limit is not None and engine.ongoing >= limit:
            self.refused += 1
            return False
        engine.add(now_s, request)
        return True

    def take(self, now_s: float, directive: Directive) -> DirectiveAck:
        """A directive arrives, as a broadcast or as the answer to a snapshot."""
        changed, ack = self._follower.on_directive(now_s, directive)
        if directive.slo_ttft_ms is not None and directive.slo_tpot_ms is not None:
            self._slo_ms = (directive.slo_ttft_ms, directive.slo_tpot_ms)
        if changed:
            self._put_in_force(now_s)
        return ack

    def snapshot(self, now_s: float) -> ReplicaSnapshot:
        """The replica's state now, and the lease looked at."""
        if self._follower.on_timer(now_s):
            self._put_in_force(now_s)
        engine = self.engine
        engine.advance(now_s)
        if engine.finished:
            self._evaluate_slo()
        stats = engine.stats
        self._seq += 1
        return ReplicaSnapshot(
            replica_id=self.name,
            incarnation=self.incarnation,
            seq=self._seq,
            ready=now_s >= self.ready_at_s,
            ready_for_s=max(0.0, now_s - self.ready_at_s),
            mode=stats.last_mode,
            directive=engine.directive,
            epoch=self._follower.epoch,
            rule=engine.rule,
            order=self._follower.order(now_s),
            order_for_all=self._follower.order_for_all(now_s),
            desired_replicas=self._follower.desired_replicas,
            admission_scale=self._admission_scale,
            lease_remaining_s=self._follower.lease_remaining_s(now_s),
            switches=stats.switches,
            steps_fp16=stats.steps[False],
            steps_fp8=stats.steps[True],
            tokens_fp16=stats.tokens[False],
            tokens_fp8=stats.tokens[True],
            waiting=len(engine.waiting),
            waiting_tokens=engine.waiting_tokens,
            oldest_wait_s=engine.oldest_wait_s(now_s),
            running=len(engine.running),
            kv_usage=engine.used_blocks / engine.total_blocks,
            arrivals=engine.arrivals,
            arrived_tokens=engine.arrived_tokens,
            finished=engine.finished_count,
            inside_share=engine.ongoing / self._whole_limit,
            refused=self.refused,
            slo_evaluated=self._slo_evaluated,
            within_slo=self._within_slo,
            ttft=engine.ttft.summary(now_s),
            tpot=engine.tpot.summary(now_s),
            step_ms_fp16=stats.step_ms[False],
            step_ms_fp8=stats.step_ms[True],
            path=None if self._served is None else self._served.path_stats(now_s),
        )

    def _put_in_force(self, now_s: float) -> None:
        self.engine.advance(now_s)  # steps that have begun keep their precision
        force = self._follower.in_force(now_s)
        self.engine.direct(force.mode, force.rule)
        self._admission_scale = force.admission_scale
        if not force.expired:
            self.directive_changes += self._directed not in (None, force.mode)
            self._directed = force.mode

    def _evaluate_slo(self) -> None:
        ttft_limit_ms, tpot_limit_ms = self._slo_ms
        for request in self.engine.finished:
            self._slo_evaluated += 1
            tpot_ms = request.tpot_ms
            self._within_slo += request.ttft_ms <= ttft_limit_ms and (tpot_ms is None or tpot_ms <= tpot_limit_ms)
        self.engine.finished.clear()
