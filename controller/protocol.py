"""How a directive reaches every replica: both ends of the protocol, without I/O.

Everything that affects the protocol's state lives in this file. Times are seconds of the owner's own clock, which may
step (``controller.clock``); the two ends never compare clocks. ``content`` means what a directive asks of one replica:
mode, rule and admission scale. A directive may ask one mode of most replicas and another of those it names.

Publisher (the controller), epoch E:

| event                                        | effect                                                    |
|----------------------------------------------|-----------------------------------------------------------|
| set_content, other than the present          | E + 1, to be sent; nobody has acknowledged                |
| a replica names an epoch > E                 | its epoch + 1, same content, to be sent                   |
| it names E, but other content, or no lease   | E + 1, same content, to be sent                           |
| it refuses E as a conflict                   | E + 1, same content, to be sent                           |
| it names E and its content                   | it has acknowledged                                       |
| it names an epoch < E                        | nothing: the answer to its snapshot carries the directive |
| timer                                        | send when new, or when a replica lags or is silent        |

A replica that names an epoch above ours has heard an earlier controller; one that names ours with other content has
heard an earlier controller that had got as far. Neither happens twice for the same epoch, so that epochs stay small.

Follower (the replica), epoch F; 0 before the first directive:

| event                                | effect                                                  |
|--------------------------------------|---------------------------------------------------------|
| directive, epoch < F                 | ignored                                                 |
| directive, epoch = F, same content   | the lease starts anew; in force again if it had run out |
| directive, epoch = F, other content  | refused                                                 |
| directive, epoch > F                 | in force, F = epoch                                     |
| the lease runs out                   | the fallback is in force, F stays                       |

The fallback turns nobody away: its admission scale is 1.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from controller.clock import SteadyClock
from controller.schema import Directive, DirectiveAck, Fallback, ReplicaSnapshot
from nestedfp.modes import DirectiveMode
from nestedfp.step_rule import StepRule

CONFLICT = "conflict"  # reason of an acknowledgement: the same epoch with other content
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


@dataclass(slots=True)
class _Peer:
    """What the publisher knows of one replica."""

    heard_at_s: float
    epoch: int = 0  # that it last named, in a snapshot or an acknowledgement
    directive: DirectiveMode = DirectiveMode.AUTO
    acked: bool = False  # the present epoch


class DirectivePublisher:
    """The controller's end. Times must not fall; the control loop sees to that.

    Args:
        lease_s: how long a replica may act on a directive without hearing of it again.
        renew_s: pause between two sends of the same directive.
        mode: what the first directive says; ``rule`` and ``reason`` likewise.
        epoch: of the first directive.
    """

    def __init__(
        self,
        lease_s: float,
        renew_s: float,
        mode: DirectiveMode,
        rule: StepRule = NO_RULE,
        reason: str = "start",
        epoch: int = 1,
    ) -> None:
        self.lease_s, self.renew_s = lease_s, renew_s
        self.content = Content(mode, rule)
        self.reason = reason
        self.epoch = epoch
        self.slo_ms: tuple[float, float] | None = None  # (ttft, tpot), told along with every directive
        self._peers: dict[str, _Peer] = {}
        self._lagging: set[str] = set()  # peers that have not acknowledged the present epoch
        self._set_at_s: float | None = None
        self._last_ack_at_s: float | None = None
        self._sent: tuple[int, float] | None = None  # epoch and time of the last send
        self._answers: dict[DirectiveMode, Directive] = {}  # of the present epoch

    @property
    def mode(self) -> DirectiveMode:
        """Of every replica that is no exception."""
        return self.content.mode

    @property
    def rule(self) -> StepRule:
        """Thresholds of the mode ``auto``."""
        return self.content.rule

    def set_mode(self, now_s: float, mode: DirectiveMode, rule: StepRule, reason: str) -> Directive:
        """Ask the same of all replicas, under a new epoch; the admission scale stays."""
        self._set(now_s, Content(mode, rule, admission_scale=self.content.admission_scale), reason)
        return self.current()

    def set_content(self, now_s: float, content: Content, reason: str) -> bool:
        """Make a new directive unless the present one asks for the same; ``due`` will ask to send it."""
        if content == self.content:
            return False
        self._set(now_s, content, reason)
        return True

    def set_terms(self, lease_s: float, renew_s: float, slo_ms: tuple[float, float] | None) -> None:
        """Change what comes with every directive but is no content of it."""
        self.lease_s, self.renew_s, self.slo_ms = lease_s, renew_s, slo_ms
        self._answers.clear()

    def current(self) -> Directive:
        """The directive with a full lease: what is broadcast."""
        return self._directive(self.content.mode, dict(self.content.exceptions))

    def answer(self, replica_id: str) -> Directive:
        """The same for one replica, without the names of others: the answer to its snapshot."""
        mode = self.content.mode_for(replica_id)
        answer = self._answers.get(mode)
        if answer is None:
            answer = self._answers[mode] = self._directive(mode, {})
        return answer

    def on_report(
        self,
        now_s: float,
        replica_id: str,
        epoch: int,
        directive: DirectiveMode,
        *,
        lapsed: bool = False,
        rule: StepRule | None = None,
        admission_scale: float | None = None,
    ) -> None:
        """Learn what a replica has in force; ``lapsed`` when its lease has run out and it follows its fallback.

        ``rule`` and ``admission_scale`` may be left out by those who do not know them.
        """
        peer = self._peers.get(replica_id)
        if peer is None:
            peer = self._peers[replica_id] = _Peer(now_s)
            self._lagging.add(replica_id)
        peer.heard_at_s, peer.epoch, peer.directive = now_s, epoch, directive
        if epoch > self.epoch or (
            epoch == self.epoch and (lapsed or not self._same(replica_id, directive, rule, admission_scale))
        ):
            self._raise_above(now_s, epoch)
        elif epoch < self.epoch:
            peer.acked = False
            self._lagging.add(replica_id)
        elif not peer.acked:
            peer.acked = True
            self._lagging.discard(replica_id)
            self._last_ack_at_s = now_s

    def on_snapshot(self, now_s: float, snapshot: ReplicaSnapshot) -> None:
        """Learn what a replica's snapshot says of its directive."""
        self.on_report(
            now_s,
            snapshot.replica_id,
            snapshot.epoch,
            snapshot.directive,
            lapsed=lapsed(snapshot),
            rule=snapshot.rule,
            admission_scale=None if snapshot.rule is None else snapshot.admission_scale,
        )

    def on_ack(self, now_s: float, ack: DirectiveAck) -> None:
        """Learn a replica's answer to a broadcast."""
        self.on_report(
            now_s,
            ack.replica_id,
            ack.epoch,
            ack.directive,
            lapsed=ack.reason == CONFLICT,
            rule=ack.rule,
            admission_scale=None if ack.rule is None else ack.admission_scale,
        )

    def acked(self, replica_id: str) -> bool:
        """Whether the replica has reported the present directive."""
        peer = self._peers.get(replica_id)
        return peer is not None and peer.acked

    def last_heard(self, replica_id: str) -> tuple[int, DirectiveMode] | None:
        """The epoch and mode that the replica last named; newer than its snapshot when a broadcast came between."""
        peer = self._peers.get(replica_id)
        return None if peer is None else (peer.epoch, peer.directive)

    def settled_after_s(self) -> float | None:
        """Seconds from the directive to its last acknowledgement; None while one is missing, or without replicas."""
        if self._lagging or not self._peers or self._set_at_s is None or self._last_ack_at_s is None:
            return None
        return max(0.0, self._last_ack_at_s - self._set_at_s)

    @property
    def peer_count(self) -> int:
        """Replicas known."""
        return len(self._peers)

    def retain(self, replica_ids: Collection[str]) -> None:
        """Wait for these replicas only: the others are gone, or have sent no snapshot yet."""
        for replica_id in self._peers.keys() - set(replica_ids):
            del self._peers[replica_id]
            self._lagging.discard(replica_id)

    def due(self, now_s: float) -> Directive | None:
        """The directive if it should be sent to all replicas now; counts as sent."""
        if self._sent is None or self._sent[0] != self.epoch:
            wanted = True
        else:
            wanted = now_s - self._sent[1] >= self.renew_s and (
                bool(self._lagging) or any(now_s - peer.heard_at_s > self.renew_s for peer in self._peers.values())
            )
        if not wanted:
            return None
        self._sent = (self.epoch, now_s)
        return self.current()

    def _directive(self, mode: DirectiveMode, exceptions: dict[str, DirectiveMode]) -> Directive:
        ttft_ms, tpot_ms = self.slo_ms or (None, None)
        return Directive(
            epoch=self.epoch,
            mode=mode,
            lease_s=self.lease_s,
            reason=self.reason,
            rule=self.content.rule,
            exceptions=exceptions,
            admission_scale=self.content.admission_scale,
            slo_ttft_ms=ttft_ms,
            slo_tpot_ms=tpot_ms,
        )

    def _same(
        self, replica_id: str, directive: DirectiveMode, rule: StepRule | None, admission_scale: float | None
    ) -> bool:
        content = self.content
        return (
            directive is content.mode_for(replica_id)
            and (rule is None or rule == content.rule)
            and (admission_scale is None or admission_scale == content.admission_scale)
        )

    def _set(self, now_s: float, content: Content, reason: str) -> None:
        self.content, self.reason = content, reason
        self._raise_above(now_s, self.epoch)

    def _raise_above(self, now_s: float, epoch: int) -> None:
        self.epoch = epoch + 1
        self._set_at_s, self._last_ack_at_s = now_s, None
        self._answers.clear()
        self._lagging = set(self._peers)
        for peer in self._peers.values():
            peer.acked = False


def lapsed(snapshot: ReplicaSnapshot) -> bool:
    """Whether the replica had a directive once and follows its fallback now."""
    return snapshot.epoch > 0 and snapshot.lease_remaining_s == 0


@dataclass(frozen=True, slots=True)
class InForce:
    """What a replica must do."""

    mode: DirectiveMode
    rule: StepRule
    epoch: int
    reason: str
    lapsed: bool  # no lease: this is the fallback
    admission_scale: float = 1.0


class DirectiveFollower:
    """The replica's end. A restarted replica starts at epoch 0 and catches up from the answer to its first snapshot.

    Its clock may step: a step back neither ends nor stretches the lease, a step forward ends it early.

    Args:
        replica_id: finds the replica among a directive's exceptions, and goes into the acknowledgements.
        fallback: what is in force without a lease.
    """

    def __init__(self, replica_id: str, fallback: Fallback) -> None:
        self._replica_id = replica_id
        self._fallback = fallback
        self._clock = SteadyClock()
        self._directive: Directive | None = None  # as it concerns this replica
        self._expires_at_s = 0.0  # on the steady clock
        self._lapse_told = True  # whether on_timer has already said that the lease ran out

    @property
    def epoch(self) -> int:
        """Of the newest directive accepted, in force or lapsed; 0 before the first."""
        return 0 if self._directive is None else self._directive.epoch

    @property
    def expires_at_s(self) -> float:
        """When the lease ends, on the follower's clock."""
        return self._clock.to_driver(self._expires_at_s)

    def on_directive(self, now_s: float, directive: Directive) -> tuple[bool, DirectiveAck]:
        """Take a directive in whatever order they arrive. Returns whether what is in force changed, and the answer."""
        steady_s = self._clock.read(now_s)
        before, mine = self._in_force(steady_s), self._directive
        mode = directive.mode_for(self._replica_id)
        if mine is not None and directive.epoch < mine.epoch:
            outcome = "older_epoch"
        elif mine is not None and directive.epoch == mine.epoch:
            asked = (mode, directive.rule, directive.admission_scale)
            outcome = "renewed" if asked == (mine.mode, mine.rule, mine.admission_scale) else CONFLICT
        else:
            outcome = "applied"
        accepted = outcome in ("applied", "renewed")
        if accepted:
            reduced = (
                directive.model_copy(update={"mode": mode, "exceptions": {}}) if directive.exceptions else directive
            )
            self._directive = reduced
            self._expires_at_s = steady_s + directive.lease_s
            self._lapse_told = False
        after = self._in_force(steady_s)
        ack = DirectiveAck(
            replica_id=self._replica_id,
            epoch=self.epoch,
            directive=after.mode,
            accepted=accepted,
            reason=outcome,
            rule=after.rule,
            admission_scale=after.admission_scale,
        )
        return (before.mode, before.rule, before.admission_scale) != (
            after.mode,
            after.rule,
            after.admission_scale,
        ), ack

    def on_timer(self, now_s: float) -> bool:
        """Whether the lease has run out since the last call: true once per lapse, and the fallback is in force then."""
        if self._lapse_told or not self.in_force(now_s).lapsed:
            return False
        self._lapse_told = True
        return True

    def in_force(self, now_s: float) -> InForce:
        """What holds now; right also when ``on_timer`` has not been called since the lease ran out."""
        return self._in_force(self._clock.read(now_s))

    def lease_remaining_s(self, now_s: float) -> float:
        """Seconds until the fallback; 0 without a lease."""
        steady_s = self._clock.read(now_s)
        return 0.0 if self._directive is None else max(0.0, self._expires_at_s - steady_s)

    def _in_force(self, steady_s: float) -> InForce:
        directive = self._directive
        if directive is None or steady_s >= self._expires_at_s:
            return InForce(self._fallback.mode, self._fallback.rule, self.epoch, "fallback", lapsed=True)
        return InForce(
            directive.mode,
            directive.rule,
            directive.epoch,
            directive.reason,
            lapsed=False,
            admission_scale=directive.admission_scale,
        )
