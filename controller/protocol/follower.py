"""The replica's end of the protocol; ``controller.protocol`` has its table. Zero I/O.

Times are seconds of the replica's own monotonic clock.
"""

from dataclasses import dataclass

from controller.messages import Directive, DirectiveAck, StandingOrder
from controller.protocol.publisher import NO_RULE
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule


@dataclass(frozen=True, slots=True)
class InForce:
    """What a replica must do."""

    mode: DirectiveMode
    rule: StepRule
    epoch: int
    reason: str
    expired: bool  # no lease: this is the operator's order, or the fallback
    admission_scale: float = 1.0


class DirectiveFollower:
    """The replica's end. A restarted replica starts at epoch 0 and catches up with its first call.

    Without a lease ``mode`` and ``rule`` are in force, until a directive brings others, and without an order of the operator.
    """

    def __init__(self, replica_id: str, mode: DirectiveMode, rule: StepRule) -> None:
        self._replica_id = replica_id
        self._fallback = mode, rule
        self._held: tuple[Directive, float] | None = None  # the newest directive accepted, and when it came

    @property
    def epoch(self) -> int:
        """Of the newest directive accepted, in force or lapsed; 0 before the first."""
        return 0 if self._held is None else self._held[0].epoch

    @property
    def latest(self) -> Directive | None:
        """The newest directive accepted, for what comes with it; None before the first."""
        return None if self._held is None else self._held[0]

    @property
    def desired_replicas(self) -> int | None:
        """What the autoscaler was last to hear, with a lease or without; None: nothing."""
        return None if self._held is None else self._held[0].desired_replicas

    @property
    def replicas(self) -> int:
        """How many replicas there are, as far as the controller has told; at least one."""
        return max(1, (self._held[0].replicas or 1) if self._held is not None else 1)

    def on_directive(self, now_s: float, directive: Directive) -> tuple[bool, DirectiveAck]:
        """Take a directive unless it is older than the one in force. Returns whether what is in force changed, and the answer."""
        before = self.in_force(now_s)
        if directive.epoch >= self.epoch:
            self._held = directive, now_s
        after = self.in_force(now_s)
        changed = (before.mode, before.rule, before.admission_scale) != (after.mode, after.rule, after.admission_scale)
        return changed, DirectiveAck(replica_id=self._replica_id, epoch=self.epoch, directive=after.mode)

    def in_force(self, now_s: float) -> InForce:
        """What holds now."""
        if (held := self._held) is None:
            return InForce(*self._fallback, 0, "fallback", expired=True)
        directive, taken_at_s = held
        if now_s < taken_at_s + directive.lease_s:
            scale = directive.admission_scale
            return InForce(directive.mode, directive.rule, directive.epoch, directive.reason, False, scale)
        order = _less_time(directive.order, now_s - taken_at_s)
        if order is not None and order.remaining_s != 0:
            return InForce(order.mode, NO_RULE, directive.epoch, "override", expired=True)
        told = directive.fallback
        fallback = self._fallback if told is None else (told.mode, told.rule or NO_RULE)
        return InForce(*fallback, directive.epoch, "fallback", expired=True)

    def lease_remaining_s(self, now_s: float) -> float:
        """Seconds until the fallback; 0 without a lease."""
        if (held := self._held) is None:
            return 0.0
        return max(0.0, held[1] + held[0].lease_s - now_s)

    def order(self, now_s: float) -> StandingOrder | None:
        """The operator's order as far as this replica knows, whether or not the lease still runs; None: none."""
        return None if (held := self._held) is None else _less_time(held[0].order, now_s - held[1])


def _less_time(order: StandingOrder | None, passed_s: float) -> StandingOrder | None:
    if order is None or order.remaining_s is None:
        return order
    return order.model_copy(update={"remaining_s": max(0.0, order.remaining_s - passed_s)})
