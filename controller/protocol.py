"""How a directive reaches every replica: both ends of the protocol, without I/O.

Everything that affects the protocol's state lives in this file. Times are seconds of the owner's own monotonic clock;
the two ends never compare clocks. ``content`` means mode and rule.

Publisher (the controller), epoch E:

| event                                        | effect                                                    |
|----------------------------------------------|-----------------------------------------------------------|
| set_mode                                     | E + 1, to be sent; nobody has acknowledged                |
| a replica names an epoch > E                 | its epoch + 1, same content, to be sent                   |
| it names E, but another mode, or no lease    | E + 1, same content, to be sent                           |
| it refuses E as a conflict                   | E + 1, same content, to be sent                           |
| it names E and our mode                      | it has acknowledged                                       |
| it names an epoch < E                        | nothing: the answer to its snapshot carries the directive |
| timer                                        | send when new, or when a replica lags or is silent        |

A replica that names an epoch above ours has heard an earlier controller; one that names ours with another mode has
heard an earlier controller that had got as far. Neither happens twice for the same epoch, so that epochs stay small.

Follower (the replica), epoch F; 0 before the first directive:

| event                                | effect                                                  |
|--------------------------------------|---------------------------------------------------------|
| directive, epoch < F                 | ignored                                                 |
| directive, epoch = F, same content   | the lease starts anew; in force again if it had run out |
| directive, epoch = F, other content  | refused                                                 |
| directive, epoch > F                 | in force, F = epoch                                     |
| the lease runs out                   | the fallback is in force, F stays                       |
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from controller.schema import Directive, DirectiveAck, Fallback
from nestedfp.modes import DirectiveMode
from nestedfp.step_rule import StepRule

CONFLICT = "conflict"  # reason of an acknowledgement: the same epoch with other content


@dataclass(slots=True)
class _Peer:
    """What the publisher knows of one replica."""

    heard_at_s: float
    epoch: int = 0  # that it last named, in a snapshot or an acknowledgement
    directive: DirectiveMode = DirectiveMode.AUTO
    acked_at_s: float | None = None  # of the present epoch


@dataclass(slots=True)
class DirectivePublisher:
    """The controller's end.

    Attributes:
        lease_s: how long a replica may act on a directive without hearing of it again.
        renew_s: pause between two sends of the same directive.
        mode: what the first directive, epoch 1, says; ``rule`` and ``reason`` likewise.
    """

    lease_s: float
    renew_s: float
    mode: DirectiveMode
    rule: StepRule = field(default_factory=StepRule)
    reason: str = "start"
    epoch: int = 1
    _peers: dict[str, _Peer] = field(default_factory=dict)
    _set_at_s: float | None = None
    _sent: tuple[int, float] | None = None  # epoch and time of the last send

    def set_mode(self, now_s: float, mode: DirectiveMode, rule: StepRule, reason: str) -> Directive:
        """Make a new directive; ``due`` will ask to send it."""
        self.mode, self.rule, self.reason = mode, rule, reason
        self._raise_above(now_s, self.epoch)
        return self.current()

    def current(self) -> Directive:
        """The directive with a full lease: the answer to every snapshot."""
        return Directive(epoch=self.epoch, mode=self.mode, lease_s=self.lease_s, reason=self.reason, rule=self.rule)

    def on_report(
        self, now_s: float, replica_id: str, epoch: int, directive: DirectiveMode, *, lapsed: bool = False
    ) -> None:
        """Learn what a replica has in force; ``lapsed`` when its lease has run out and it follows its fallback."""
        peer = self._peers.setdefault(replica_id, _Peer(now_s))
        peer.heard_at_s, peer.epoch, peer.directive = now_s, epoch, directive
        if epoch > self.epoch or (epoch == self.epoch and (lapsed or directive is not self.mode)):
            self._raise_above(now_s, epoch)
        elif epoch < self.epoch:
            peer.acked_at_s = None
        elif peer.acked_at_s is None:
            peer.acked_at_s = now_s

    def on_ack(self, now_s: float, ack: DirectiveAck) -> None:
        """Learn a replica's answer to a broadcast."""
        self.on_report(now_s, ack.replica_id, ack.epoch, ack.directive, lapsed=ack.reason == CONFLICT)

    def acked(self, replica_id: str) -> bool:
        """Whether the replica has reported the present directive."""
        peer = self._peers.get(replica_id)
        return peer is not None and peer.acked_at_s is not None

    def last_heard(self, replica_id: str) -> tuple[int, DirectiveMode] | None:
        """The epoch and mode that the replica last named; newer than its snapshot when a broadcast came between."""
        peer = self._peers.get(replica_id)
        return None if peer is None else (peer.epoch, peer.directive)

    def settled_after_s(self) -> float | None:
        """Seconds from the directive to its last acknowledgement; None while one is missing, or without replicas."""
        acked_at_s = [peer.acked_at_s for peer in self._peers.values() if peer.acked_at_s is not None]
        if not acked_at_s or len(acked_at_s) < len(self._peers) or self._set_at_s is None:
            return None
        return max(0.0, max(acked_at_s) - self._set_at_s)

    @property
    def peer_count(self) -> int:
        """Replicas known."""
        return len(self._peers)

    def retain(self, replica_ids: Collection[str]) -> None:
        """Wait for these replicas only: the others are gone, or have sent no snapshot yet."""
        for replica_id in self._peers.keys() - set(replica_ids):
            del self._peers[replica_id]

    def due(self, now_s: float) -> Directive | None:
        """The directive if it should be sent to all replicas now; counts as sent."""
        if self._sent is None or self._sent[0] != self.epoch:
            wanted = True
        else:
            wanted = now_s - self._sent[1] >= self.renew_s and any(
                peer.acked_at_s is None or now_s - peer.heard_at_s > self.renew_s for peer in self._peers.values()
            )
        if not wanted:
            return None
        self._sent = (self.epoch, now_s)
        return self.current()

    def _raise_above(self, now_s: float, epoch: int) -> None:
        self.epoch = epoch + 1
        self._set_at_s = now_s
        for peer in self._peers.values():
            peer.acked_at_s = None


@dataclass(frozen=True, slots=True)
class InForce:
    """What a replica's engine must do."""

    mode: DirectiveMode
    rule: StepRule
    epoch: int
    reason: str
    lapsed: bool  # no lease: this is the fallback


class DirectiveFollower:
    """The replica's end. A restarted replica starts at epoch 0 and catches up from the answer to its first snapshot.

    Args:
        replica_id: goes into the acknowledgements.
        fallback: what is in force without a lease.
    """

    def __init__(self, replica_id: str, fallback: Fallback) -> None:
        self._replica_id = replica_id
        self._fallback = fallback
        self._directive: Directive | None = None
        self._expires_at_s = 0.0
        self._lapse_told = True  # whether on_timer has already said that the lease ran out

    @property
    def epoch(self) -> int:
        """Of the newest directive accepted, in force or lapsed; 0 before the first."""
        return 0 if self._directive is None else self._directive.epoch

    @property
    def expires_at_s(self) -> float:
        """When the lease ends, on the follower's clock."""
        return self._expires_at_s

    def on_directive(self, now_s: float, directive: Directive) -> tuple[bool, DirectiveAck]:
        """Take a directive in whatever order they arrive. Returns whether what is in force changed, and the answer."""
        before = self.in_force(now_s)
        mine = self._directive
        if mine is not None and directive.epoch < mine.epoch:
            outcome = "older_epoch"
        elif mine is not None and directive.epoch == mine.epoch:
            same = (directive.mode, directive.rule) == (mine.mode, mine.rule)
            outcome = "renewed" if same else CONFLICT
        else:
            outcome = "applied"
        accepted = outcome in ("applied", "renewed")
        if accepted:
            self._directive = directive
            self._expires_at_s = now_s + directive.lease_s
            self._lapse_told = False
        after = self.in_force(now_s)
        ack = DirectiveAck(
            replica_id=self._replica_id, epoch=self.epoch, directive=after.mode, accepted=accepted, reason=outcome
        )
        return (before.mode, before.rule) != (after.mode, after.rule), ack

    def on_timer(self, now_s: float) -> bool:
        """Whether the lease has run out since the last call: true once per lapse, and the fallback is in force then."""
        if self._lapse_told or not self.in_force(now_s).lapsed:
            return False
        self._lapse_told = True
        return True

    def in_force(self, now_s: float) -> InForce:
        """What holds now; right also when ``on_timer`` has not been called since the lease ran out."""
        if self._directive is None or now_s >= self._expires_at_s:
            return InForce(self._fallback.mode, self._fallback.rule, self.epoch, "fallback", lapsed=True)
        directive = self._directive
        return InForce(directive.mode, directive.rule, directive.epoch, directive.reason, lapsed=False)

    def lease_remaining_s(self, now_s: float) -> float:
        """Seconds until the fallback; 0 without a lease."""
        return 0.0 if self._directive is None else max(0.0, self._expires_at_s - now_s)
