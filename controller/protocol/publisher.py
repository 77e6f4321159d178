"""The controller's end of the protocol; ``controller.protocol`` has its table. Zero I/O.

Times are seconds of the controller's monotonic clock.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from controller.messages import Directive, Fallback, ReplicaSnapshot, Terms
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule

NO_RULE = StepRule()


@dataclass(frozen=True, slots=True)
class Content:
    """What a directive asks for. ``exceptions`` is never changed in place, and names no replica that does ``mode``."""

    mode: DirectiveMode
    rule: StepRule = NO_RULE
    exceptions: Mapping[str, DirectiveMode] = field(default_factory=dict)
    admission_scale: float = 1.0

    def mode_for(self, replica_id: str) -> DirectiveMode:
        """What this replica must do."""
        return self.exceptions.get(replica_id, self.mode)


class DirectivePublisher:
    """The controller's end; ``terms`` come with every directive, the rest is what the first one says."""

    def __init__(
        self, terms: Terms, mode: DirectiveMode, rule: StepRule = NO_RULE, reason: str = "start", epoch: int = 1
    ) -> None:
        self.terms, self._goes_on = terms, False
        self.content = Content(mode, rule)
        self.reason = reason
        self.epoch = epoch
        self._heard: dict[str, tuple[int, DirectiveMode]] = {}  # what each replica last named
        self._lagging: set[str] = set()  # of them, those that have not acknowledged the present epoch
        self._set_at_s: float | None = None
        self._last_ack_at_s: float | None = None
        self._made: dict[DirectiveMode, Directive] = {}  # of the present epoch

    def set_content(self, now_s: float, content: Content, reason: str, *, anew: bool = False) -> None:
        """Make a new directive unless the present one asks for the same, or if ``anew``."""
        if anew or content != self.content:
            self.content, self.reason = content, reason
            self._raise_above(now_s, self.epoch)

    def set_terms(self, terms: Terms, *, goes_on: bool = False) -> None:
        """Change what comes with every directive.

        With ``goes_on`` a replica without a lease goes on as the directive has it, unless that is an operator's order.
        """
        if (terms, goes_on) != (self.terms, self._goes_on):
            self.terms, self._goes_on = terms, goes_on
            self._made.clear()

    def directive_for(self, replica_id: str) -> Directive:
        """The directive of one replica, with a full lease."""
        content, terms = self.content, dict(self.terms)
        mode = content.mode_for(replica_id)
        if (made := self._made.get(mode)) is not None:
            return made
        if self._goes_on and self.terms.order is None:
            terms["fallback"] = Fallback(mode=mode, rule=content.rule)
        scale = content.admission_scale
        made = self._made[mode] = Directive(
            **terms, epoch=self.epoch, mode=mode, reason=self.reason, rule=content.rule, admission_scale=scale
        )
        return made

    def on_report(
        self,
        now_s: float,
        replica_id: str,
        epoch: int,
        directive: DirectiveMode,
        *,
        expired: bool = False,
    ) -> None:
        """Learn what a replica has in force; ``expired`` when its lease has run out and it follows its fallback."""
        known = self._heard.get(replica_id)
        if known is not None and 0 < epoch < known[0]:
            return  # overtaken by what it has said since: its epochs grow, and a new engine's begin with 0
        self._heard[replica_id] = epoch, directive
        if epoch > self.epoch or (known is None and epoch == self.epoch):
            self._raise_above(now_s, epoch)
        elif epoch < self.epoch or expired:
            self._lagging.add(replica_id)
        elif replica_id in self._lagging:
            self._lagging.discard(replica_id)
            self._last_ack_at_s = now_s

    def acked(self, replica_id: str) -> bool:
        """Whether the replica has reported the present directive."""
        return replica_id in self._heard and replica_id not in self._lagging

    def last_heard(self, replica_id: str) -> tuple[int, DirectiveMode] | None:
        """The epoch and mode that the replica last named; newer than its snapshot when a directive came between."""
        return self._heard.get(replica_id)

    def converged_after_s(self) -> float | None:
        """Seconds from the directive to its last acknowledgement; None while one is missing, or without replicas."""
        if self._lagging or not self._heard or self._set_at_s is None or self._last_ack_at_s is None:
            return None
        return max(0.0, self._last_ack_at_s - self._set_at_s)

    @property
    def peer_count(self) -> int:
        """Replicas known."""
        return len(self._heard)

    def retain(self, replica_ids: Collection[str]) -> None:
        """Wait for these replicas only: the others are gone, or have sent no snapshot yet."""
        for replica_id in self._heard.keys() - set(replica_ids):
            del self._heard[replica_id]
            self._lagging.discard(replica_id)

    def _raise_above(self, now_s: float, epoch: int) -> None:
        self.epoch = epoch + 1
        self._set_at_s, self._last_ack_at_s = now_s, None
        self._made.clear()
        self._lagging = set(self._heard)


def lease_expired(snapshot: ReplicaSnapshot) -> bool:
    """Whether the replica had a directive once and follows its fallback now."""
    return snapshot.epoch > 0 and snapshot.lease_remaining_s == 0
