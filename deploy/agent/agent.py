"""The replica's end of the control plane: sends a snapshot every period, puts directives in force, watches the lease.

Talks to the engine and to the controller through functions that it is given, so that it knows neither vLLM nor Ray.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from controller.config import RENEW_S, REPORT_PERIOD_S, ControllerConfig
from controller.messages import Directive, ReplicaSnapshot
from controller.protocol.follower import DirectiveFollower
from deploy.access.admission import Admission
from deploy.front.context import PathMeter
from deploy.replica.health_routes import DEAD, EngineHung
from nestedfp.answers import Answer

log = logging.getLogger(__name__)

EngineCall = Callable[..., Awaitable[Any]]  # (utility name, *arguments) -> result
# (acknowledgement, token of the directive seen last) -> what ControllerActor.next_directive answers
Call = Callable[[dict[str, Any] | None, str | None], Awaitable[dict[str, Any] | None]]
REPORT_TIMEOUT_S = 2.0
ENGINE_TIMEOUT_S = 2.0  # the engine answers between two steps; one that does not may be in a long step, or hang
LATE_AFTER_S = 3.0  # a new request had better go to another replica, if there is one
HUNG_AFTER_S = 8.0  # no step of a sound engine takes so long; Serve then asks three times, two seconds apart
# Requests in an engine found to hang are ended then: before Serve ends the replica, which would cut them off without a word.
GIVEN_UP_AFTER_S = 2.0
WATCH_PERIOD_S = 0.25
# A controller that has not answered by then hangs, has been replaced, or its answer was lost: soon enough to cost no lease.
CALL_TIMEOUT_S = 2 * RENEW_S
PAUSE_S = 0.1  # after a call that failed: a new controller is there soon


@dataclass(eq=False)
class ReplicaAgent:
    """Control-plane agent of one replica."""

    replica_id: str  # in the controller's status
    engine: EngineCall
    report: Callable[[dict[str, Any]], Awaitable[None]]  # sends a snapshot; raises where no controller can be reached
    call: Call  # waits for the controller's next directive; may raise likewise
    config: ControllerConfig  # objectives, and the policy, from which follows what holds when the lease runs out
    admission: Admission  # its scale is the controller's to set
    meter: PathMeter  # of the path that the replica's requests take
    dead: Callable[[], bool] = lambda: False  # whether the engine has ended, also while nobody asks it
    give_up: Callable[[Exception], None] = lambda error: None  # ends every request that is in the engine with an error
    stats: dict[str, Any] | None = None  # the engine's newest (``nestedfp_stats``); None before its first answer

    def __post_init__(self) -> None:
        self._started_s = time.monotonic()
        self._follower = DirectiveFollower(self.replica_id, *self.config.lapsed)
        self._applied: dict[str, Any] | None = None  # what the engine was told last
        self.meter.slo = self.config.slo
        self._stats_at_s = 0.0
        self._seq = 0
        self._following: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._lapsed = True  # there is no lease
        self._asked = asyncio.Event()  # the controller, once, whether or not it has answered

    # -- life cycle ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Put the fallback in force, start the loops on the running event loop, and wait for the controller's first word.

        No request comes before: one that comes while an operator's override holds must not meet the fallback.
        """
        self._started_s = time.monotonic()
        await self._put_in_force()
        self._stats_at_s = self._started_s
        loops = (self._poll_engine(), self._watch_engine(), self._report(), self._listen(), self.meter.probe())
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_TIMEOUT_S + ENGINE_TIMEOUT_S):
                await self._asked.wait()

    async def stop(self) -> None:
        """End the loops."""
        tasks = [*self._tasks, *([self._following] if self._following is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- directives ----------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Wait for the controller's next directive, in one call after another; the acknowledgement goes with the next one."""
        ack: dict[str, Any] | None = None
        seen: str | None = None
        reachable = True
        while True:
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    answer = await self.call(ack, seen)
            except Exception as error:
                if reachable:
                    log.warning(
                        "the controller does not answer the call for directives (%r); the directive holds until its lease ends",
                        error,
                    )
                reachable = False
                ack = answer = None  # whoever answers next learns from the snapshots what is in force
                self._asked.set()
            else:
                if not reachable:
                    log.info("the controller answers the call for directives again")
                reachable = True
                ack = None
            if answer is None:
                await asyncio.sleep(PAUSE_S)
                continue
            seen = answer["token"]
            try:
                ack = await self._take(answer["directive"])
            except Exception:
                log.exception("a directive was not taken; the one before it holds until its lease ends")
            self._asked.set()

    async def _take(self, directive: dict[str, Any]) -> dict[str, Any] | None:
        """Take a directive; return the acknowledgement, None where the next step does not run under it yet."""
        _, ack = self._follower.on_directive(time.monotonic(), Directive.model_validate(directive))
        self._follow()
        if self._following is not None:
            await asyncio.wait({self._following}, timeout=RENEW_S)  # an engine in a long step must not cost the lease
        return ack.model_dump(mode="json") if self._wanted() is None else None

    def _follow(self) -> None:
        """Have the engine follow, beside the reports: one that hangs must not keep its replica from saying so."""
        if self.dead() or not (self._following is None or self._following.done()):
            return
        self._following = asyncio.create_task(self._put_in_force())
        self._following.add_done_callback(_log_failure)

    async def _put_in_force(self) -> None:
        """Bring the engine in line with the follower; it answers between two steps."""
        while (wanted := self._wanted()) is not None:
            await self.engine("nestedfp_set_directive", wanted)
            self._applied = wanted

    def _wanted(self) -> dict[str, Any] | None:
        """The directive that the engine must be told; None: it knows. Admission follows at once."""
        force = self._follower.in_force(time.monotonic())
        self.admission.scale = force.admission_scale
        wanted = {"mode": force.mode.value, "epoch": force.epoch, "rule": asdict(force.rule)}
        return None if wanted == self._applied else wanted

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def directed(self) -> str:
        """The mode in force: fp16, fp8 or auto."""
        return self._follower.in_force(time.monotonic()).mode.value

    @property
    def lease_remaining_s(self) -> float:
        """How long the controller's word still holds; 0: the fallback is in force."""
        return self._follower.lease_remaining_s(time.monotonic())

    @property
    def desired_replicas(self) -> int | None:
        """What the controller wants the autoscaler to hear; 0: no more than the usual, None: it has not spoken yet.

        Its last word holds without a lease: whoever takes its place needs seconds, and would find the extra replicas gone.
        """
        return None if self._follower.latest is None else self._follower.desired_replicas or 0

    @property
    def replicas(self) -> int:
        """How many replicas there are, as far as the controller has told; at least one."""
        return self._follower.replicas

    @property
    def stalled_s(self) -> float:
        """How long the engine has had work and made no step, by its newest statistics and their age; 0: it has none."""
        progress_age_s = None if self.stats is None else self.stats.get("progress_age_s")
        return 0.0 if progress_age_s is None else progress_age_s + self.stats_age_s

    @property
    def stats_age_s(self) -> float:
        """Age of the engine's newest statistics, in seconds."""
        return max(0.0, time.monotonic() - self._stats_at_s)

    @property
    def fault(self) -> str | None:
        """Why this replica can take no request; None: it can.

        Its engine has died, or for ``HUNG_AFTER_S`` has not answered, or has had work and made no step.
        """
        if self.dead():
            return DEAD
        if self.stats_age_s > HUNG_AFTER_S:
            return f"its engine has not answered for {self.stats_age_s:.0f} s: it hangs"
        if self.stalled_s > HUNG_AFTER_S:
            return f"its engine has had work and made no step for {self.stalled_s:.0f} s: it hangs"
        return None

    @property
    def engine_is_late(self) -> bool:
        """Whether the engine has not answered for so long that a request had better go to another replica."""
        return self.stats_age_s > LATE_AFTER_S

    def check_engine(self) -> None:
        """Raise ``RuntimeError``, with the reason, where the engine has died or hangs."""
        if (fault := self.fault) is not None:
            raise RuntimeError(fault)

    # -- loops ---------------------------------------------------------------------------------------------------------

    async def _poll_engine(self) -> None:
        # A loop of its own: the engine answers between two steps, and a long step must not delay the snapshots.
        while True:
            began_s = time.monotonic()
            try:
                # Not cancelled at the limit: a late answer is an answer.
                call = asyncio.ensure_future(self.engine("nestedfp_stats"))
                while not (await asyncio.wait({call}, timeout=ENGINE_TIMEOUT_S))[0]:
                    if self.dead():  # nobody will answer this call
                        call.cancel()
                        return
                    log.warning("the engine has not answered for %.0f s", time.monotonic() - self._stats_at_s)
                self.stats = stats = call.result()
                self._stats_at_s = time.monotonic()
                self.admission.engine_has(stats["running"], stats["waiting"])
            except Exception as error:
                if self.dead():
                    return
                log.error("the engine does not answer; the health check will replace this replica: %r", error)
                await asyncio.sleep(1.0)
            await asyncio.sleep(max(0.0, REPORT_PERIOD_S - (time.monotonic() - began_s)))

    async def _watch_engine(self) -> None:
        """Say once when the engine dies or hangs, and end what is in one that hangs: its clients would wait for nothing."""
        looks = 0  # in a row that found a fault
        while True:
            fault = self.fault
            if fault is not None and not looks:
                log.error("this replica takes no more requests and is to be replaced: %s", fault)
            elif fault is None and looks:
                log.warning("the engine is back; this replica takes requests again")
            looks = 0 if fault is None else looks + 1
            # By looks and not by the clock: after a pause of this process itself a sound engine has been silent for long, too.
            # Again and again: a request on its way into the engine may have arrived since. vLLM ends those of a dead one.
            if fault is not None and fault != DEAD and looks * WATCH_PERIOD_S > GIVEN_UP_AFTER_S:
                self.give_up(EngineHung(f"this replica is to be replaced: {fault}"))
            await asyncio.sleep(WATCH_PERIOD_S)

    async def _report(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                force = self._follower.in_force(began_s)
                if force.expired and not self._lapsed:
                    log.warning("the controller's lease ran out; falling back to %s", force)
                self._lapsed = force.expired
                self._follow()
                if (latest := self._follower.latest) is not None and latest.slo is not None:
                    self.meter.slo = latest.slo
                if self.stats is not None:
                    snapshot = self.snapshot(began_s).model_dump(mode="json")
                    with contextlib.suppress(Exception):  # the call for directives says so in the log
                        # Not wait_for: up to Python 3.11 that may swallow a cancellation.
                        async with asyncio.timeout(REPORT_TIMEOUT_S):
                            await self.report(snapshot)
            except Exception:
                log.exception("snapshot failed; trying again")
            await asyncio.sleep(max(0.0, REPORT_PERIOD_S - (time.monotonic() - began_s)))

    def snapshot(self, now_s: float) -> ReplicaSnapshot:
        """Build the replica's snapshot from the newest engine statistics."""
        assert self.stats is not None, "no snapshot before the engine's first answer"
        stats = dict(self.stats)
        self._seq += 1
        force = self._follower.in_force(now_s)
        age_s = max(0.0, now_s - self._stats_at_s)
        fault = self.fault
        if stats["oldest_wait_s"] > 0:  # they keep waiting while the engine is inside a long step
            stats["oldest_wait_s"] += age_s
        ttft, tpot = self.meter.windows(now_s)
        return ReplicaSnapshot(
            replica_id=self.replica_id,
            seq=self._seq,
            ready=fault is None,
            fault=fault,
            ready_for_s=max(0.0, now_s - self._started_s),
            rule=force.rule,
            order=self._follower.order(now_s),
            desired_replicas=self._follower.desired_replicas,
            admission_scale=force.admission_scale,
            inside_share=self.admission.inside_share,
            refused=self.admission.refused,
            slo_evaluated=self.meter.slo_evaluated,
            within_slo=self.meter.within_slo,
            lease_remaining_s=self._follower.lease_remaining_s(now_s),
            ttft=ttft,
            tpot=tpot,
            path=self.meter.stats(now_s),
            stats_age_s=age_s,
            **{f"answers_{answer}": self.meter.requests.answers[answer] for answer in Answer},
            **stats,
        )


def _log_failure(following: asyncio.Task[None]) -> None:
    if not following.cancelled() and (error := following.exception()) is not None:
        log.warning("the directive could not be put in force, trying again: %r", error)
