"""One simulated replica: an engine, its admission control, and the agent that sends its snapshots and follows directives. Pure.

Follower, admission control and the memory of requests sent on are the live classes, in simulated time. Directives are put in
force between two steps, and the lease is looked at whenever a snapshot is made.
"""

from dataclasses import asdict
from typing import Literal

from controller.config import ControllerConfig
from controller.messages import Directive, DirectiveAck, ReplicaSnapshot, Room
from controller.protocol.follower import DirectiveFollower
from deploy.access.admission import TOKENS_IN_QUEUE, Admission, Asked, NoRoom, Place
from deploy.access.peers import Elsewhere
from deploy.front.checks.asked import CHARACTERS_PER_TOKEN
from deploy.haproxy.haproxy_config import ATTEMPT_HEADER, MOST_TRIES
from nestedfp.modes import DirectiveMode, Mode
from simulator.engine.cost_table import EngineTable
from simulator.engine.engine import Engine
from simulator.engine.request import SimRequest

Answer = Literal["taken", "elsewhere", "refused"]  # elsewhere: HAProxy offers the request to another replica


class Replica:
    """One replica.

    Args:
        ready_at_s: end of the warm-up; no request comes before.
        admission_limit: sequences inside at most; None: no limit until the controller lowers the admission scale.
    """

    def __init__(
        self,
        name: str,
        table: EngineTable,
        config: ControllerConfig,
        ready_at_s: float = 0.0,
        admission_limit: int | None = None,
    ) -> None:
        self.name = name
        self.engine = Engine(table)
        self.ready_at_s = ready_at_s
        self.gone = False  # failed or retired: messages to it are lost
        self.draining = False  # gets no new requests, and goes when the last is answered
        self.directive_changes = 0  # between one directive and the next; lapses are no decision
        limits = table.engine
        self._admission = Admission(
            admission_limit,
            limits.max_num_seqs,
            TOKENS_IN_QUEUE * limits.kv_tokens,
            limits.max_model_tokens,
            clock=lambda: 0.0,  # only deadlines and times to try again go by it, and there are none here
        )
        self._places: dict[SimRequest, Place] = {}
        self._elsewhere = Elsewhere()
        self._slo = config.slo
        self._follower = DirectiveFollower(name, *config.lapsed)
        self._directed: DirectiveMode | None = None
        self._seq = 0
        self._slo_evaluated = 0
        self._within_slo = 0
        self._put_in_force(0.0)

    def advance(self, now_s: float) -> None:
        """Run the engine up to now, and let out the requests that it has answered."""
        self.engine.advance(now_s)
        if self.engine.finished:
            self._let_out()

    def offer(self, now_s: float, request: SimRequest) -> Answer:
        """Take a request, or say that another replica should, or refuse it: in the order of ``deploy.front.generate``."""
        self.advance(now_s)
        attempt = {ATTEMPT_HEADER.encode(): b"%d" % request.index}
        body_bytes = CHARACTERS_PER_TOKEN * request.prompt_tokens
        try:
            place = self._admission.enter(Asked(1, 1, request.prompt_tokens, request.output_tokens))
        except NoRoom as no_room:
            if self._elsewhere.came_back(attempt):
                return "refused"
            replicas = self._follower.replicas
            goes = replicas > 1 and self._elsewhere.may_go(attempt, body_bytes)
            self._admission.turned_away(no_room, min(replicas, MOST_TRIES) if goes else 1)
            return "elsewhere" if goes else "refused"
        self._places[request] = place
        self.engine.add(now_s, request)
        return "taken"

    def take(self, now_s: float, directive: Directive) -> DirectiveAck:
        """A directive arrives."""
        changed, ack = self._follower.on_directive(now_s, directive)
        self._slo = directive.slo or self._slo
        if changed:
            self._put_in_force(now_s)
        return ack

    def snapshot(self, now_s: float) -> ReplicaSnapshot:
        """The replica's state now, and the lease looked at."""
        if not self._lapsed and self._follower.in_force(now_s).expired:
            self._put_in_force(now_s)
        self.advance(now_s)
        engine, admission = self.engine, self._admission
        stats, room = engine.stats, engine.room(now_s)
        self._seq += 1
        return ReplicaSnapshot(
            replica_id=self.name,
            seq=self._seq,
            ready=now_s >= self.ready_at_s,
            ready_for_s=max(0.0, now_s - self.ready_at_s),
            mode=stats.last_mode or Mode.FP16,
            directive=engine.directive,
            epoch=self._follower.epoch,
            rule=engine.rule,
            order=self._follower.order(now_s),
            desired_replicas=self._follower.desired_replicas,
            admission_scale=admission.scale,
            lease_remaining_s=self._follower.lease_remaining_s(now_s),
            switches=stats.switches,
            steps_fp16=stats.steps[Mode.FP16],
            steps_fp8=stats.steps[Mode.FP8],
            steps_mixed=stats.steps_mixed,
            tokens_fp16=stats.tokens[Mode.FP16],
            tokens_fp8=stats.tokens[Mode.FP8],
            waiting=len(engine.waiting),
            waiting_tokens=engine.waiting_tokens,
            oldest_wait_s=engine.oldest_wait_s(now_s),
            running=len(engine.running),
            kv_usage=engine.used_blocks / engine.total_blocks,
            arrivals=engine.arrivals,
            arrived_tokens=engine.arrived_tokens,
            finished=engine.finished_count,
            inside_share=admission.inside_share,
            refused=admission.refused,
            slo_evaluated=self._slo_evaluated,
            within_slo=self._within_slo,
            ttft=engine.ttft.summary(now_s),
            tpot=engine.tpot.summary(now_s),
            exact_tokens_per_s=engine.capacity_tokens_per_s(Mode.FP16),
            fast_tokens_per_s=engine.capacity_tokens_per_s(Mode.FP8),
            room=None if room is None else Room(**asdict(room)),
            step_ms_fp16=stats.step_ms[Mode.FP16],
            step_ms_fp8=stats.step_ms[Mode.FP8],
        )

    def _put_in_force(self, now_s: float) -> None:
        self.advance(now_s)  # steps that have begun keep their precision
        force = self._follower.in_force(now_s)
        self.engine.direct(force.mode, force.rule)
        self._admission.scale = force.admission_scale
        self._lapsed = force.expired
        if not force.expired:
            self.directive_changes += self._directed not in (None, force.mode)
            self._directed = force.mode

    def _let_out(self) -> None:
        for request in self.engine.finished:
            self._slo_evaluated += 1
            self._within_slo += self._slo.met(request.ttft_ms, request.tpot_ms)
            self._places.pop(request).leave(request.output_tokens)
        self.engine.finished.clear()
