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

    Args:
        replica_id: goes into the acknowledgements.
        mode: what is in force without a lease, until a directive brings another one, and without an order of the operator.
        rule: likewise.
    """

    def __init__(self, replica_id: str, mode: DirectiveMode, rule: StepRule) -> None:
        self._replica_id = replica_id
        self._lapsed = mode, rule
        self._directive: Directive | None = None
        self._expires_at_s = self._taken_at_s = 0.0
        self._expiry_reported = True  # whether on_timer has already said that the lease ran out

    @property
    def epoch(self) -> int:
        """Of the newest directive accepted, in force or lapsed; 0 before the first."""
        return 0 if self._directive is None else self._directive.epoch

    @property
    def latest(self) -> Directive | None:
        """The newest directive accepted, for what comes with it; None before the first."""
        return self._directive

    @property
    def desired_replicas(self) -> int | None:
        """What the autoscaler was last to hear, with a lease or without; None: nothing."""
        return None if self._directive is None else self._directive.desired_replicas

    @property
    def replicas(self) -> int:
        """How many replicas there are, as far as the controller has told; at least one."""
        return max(1, (self._directive.replicas or 1) if self._directive is not None else 1)

    def on_directive(self, now_s: float, directive: Directive) -> tuple[bool, DirectiveAck]:
        """Take a directive unless it is older than the one in force. Returns whether what is in force changed, and the answer."""
        before = self.in_force(now_s)
        if directive.epoch >= self.epoch:
            self._directive = directive
            if directive.fallback is not None:
                self._lapsed = directive.fallback.mode, directive.fallback.rule or NO_RULE
            self._expires_at_s = now_s + directive.lease_s
            self._taken_at_s = now_s
            self._expiry_reported = False
        after = self.in_force(now_s)
        changed = (before.mode, before.rule, before.admission_scale) != (after.mode, after.rule, after.admission_scale)
        return changed, DirectiveAck(replica_id=self._replica_id, epoch=self.epoch, directive=after.mode)

    def on_timer(self, now_s: float) -> bool:
        """Whether the lease has run out since the last call: true once per lapse, and the fallback is in force then."""
        if self._expiry_reported or not self.in_force(now_s).expired:
            return False
        self._expiry_reported = True
        return True

    def in_force(self, now_s: float) -> InForce:
        """What holds now; right also when ``on_timer`` has not been called since the lease ran out."""
        directive = self._directive
        if directive is None or now_s >= self._expires_at_s:
            order = self.order(now_s)
            if order is not None and order.remaining_s != 0:
                return InForce(order.mode, NO_RULE, self.epoch, "override", expired=True)
            return InForce(*self._lapsed, self.epoch, "fallback", expired=True)
        return InForce(
            directive.mode,
            directive.rule,
            directive.epoch,
            directive.reason,
            expired=False,
            admission_scale=directive.admission_scale,
        )

    def lease_remaining_s(self, now_s: float) -> float:
        """Seconds until the fallback; 0 without a lease."""
        return 0.0 if self._directive is None else max(0.0, self._expires_at_s - now_s)

    def order(self, now_s: float) -> StandingOrder | None:
        """The operator's order as far as this replica knows, whether or not the lease still runs; None: none."""
        order = None if self._directive is None else self._directive.order
        if order is None or order.remaining_s is None:
            return order
        remaining_s = max(0.0, order.remaining_s - (now_s - self._taken_at_s))
        return order.model_copy(update={"remaining_s": remaining_s})
