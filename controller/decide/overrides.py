"""The operator's orders: a mode for all replicas or for one, with or without an end. Zero I/O.

They outlive the controller: replicas are told of them with every directive, and tell a new controller, which takes them up
until the operator says something else. Of replicas that differ the one with the highest epoch knows best.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from controller.messages import ReplicaSnapshot, StandingOrder
from controller.protocol.publisher import Content
from nestedfp.modes import DirectiveMode


@dataclass(frozen=True, slots=True)
class Override:
    """The operator's word."""

    mode: DirectiveMode  # fp16 or fp8; auto means "no override" and is never stored
    expires_at_s: float | None = None  # None: until handed back

    def __post_init__(self) -> None:
        assert self.mode is not DirectiveMode.AUTO, "an override to auto hands back to the policy; store None instead"

    def is_over(self, now_s: float) -> bool:
        """Whether it has expired."""
        return self.expires_at_s is not None and now_s >= self.expires_at_s

    def reported(self, now_s: float, *, for_all: bool) -> StandingOrder:
        """As replicas are told of it."""
        remaining_s = None if self.expires_at_s is None else self.expires_at_s - now_s
        return StandingOrder(mode=self.mode, remaining_s=remaining_s, for_all=for_all)


class Overrides:
    """What the operator has ordered and not taken back."""

    def __init__(self) -> None:
        self.for_all: Override | None = None
        self.by_replica: dict[str, Override] = {}
        self._adopted_epoch: int | None = 0  # of the directive whose order was taken up; None: the operator has spoken

    def set(self, now_s: float, mode: DirectiveMode, ttl_s: float | None, replica_id: str | None = None) -> None:
        """Take an order; ``auto`` hands back to the policy. An order for all ends those for single replicas.

        Raises:
            ValueError: for a ``ttl_s`` that is not positive, or one given with ``auto``; nothing changes then.
        """
        if ttl_s is not None and (mode is DirectiveMode.AUTO or not 0 < ttl_s < float("inf")):
            raise ValueError(
                f"expected ttl_s > 0 with mode fp16 or fp8, got ttl_s={ttl_s!r} with mode {mode.value}; "
                "leave ttl_s out to override without end, or to hand back"
            )
        self._adopted_epoch = None
        order = None if mode is DirectiveMode.AUTO else Override(mode, None if ttl_s is None else now_s + ttl_s)
        if replica_id is None:
            self.for_all = order
            self.by_replica = {}
        elif order is None:
            self.by_replica.pop(replica_id, None)
        else:
            self.by_replica[replica_id] = order

    def adopt(self, now_s: float, snapshot: ReplicaSnapshot) -> None:
        """Take up what a replica was told by a controller before this one."""
        reported = snapshot.order
        if self._adopted_epoch is None or snapshot.epoch < self._adopted_epoch:
            return
        newer, self._adopted_epoch = snapshot.epoch > self._adopted_epoch, snapshot.epoch
        order = _standing(now_s, reported)
        if reported is not None and not reported.for_all:  # the one for all stands beside it, also where it is over
            if order is not None:
                self.by_replica[snapshot.replica_id] = order
            order = _standing(now_s, snapshot.order_for_all)
        if order is not None or newer:
            self.for_all = order

    def reported(self, now_s: float) -> tuple[StandingOrder | None, dict[str, StandingOrder]]:
        """The orders as replicas and the status are told of them: for all, and for single replicas."""
        self.expire(now_s)
        single = {replica_id: order.reported(now_s, for_all=False) for replica_id, order in self.by_replica.items()}
        return None if self.for_all is None else self.for_all.reported(now_s, for_all=True), single

    def expire(self, now_s: float) -> None:
        """Drop what has come to its end."""
        if self.for_all is not None and self.for_all.is_over(now_s):
            self.for_all = None
        for replica_id in [replica_id for replica_id, order in self.by_replica.items() if order.is_over(now_s)]:
            del self.by_replica[replica_id]

    def applied(self, content: Content) -> Content:
        """The content with the orders for single replicas; those for all are the loop's to apply."""
        if not self.by_replica:
            return content
        exceptions = {**content.exceptions, **{replica_id: order.mode for replica_id, order in self.by_replica.items()}}
        kept = {replica_id: mode for replica_id, mode in exceptions.items() if mode is not content.mode}
        return replace(content, exceptions=kept)

    def ends_s(self) -> Iterator[float]:
        """When orders end."""
        for order in (self.for_all, *self.by_replica.values()):
            if order is not None and order.expires_at_s is not None:
                yield order.expires_at_s


def _standing(now_s: float, reported: StandingOrder | None) -> Override | None:
    """A reported order, unless it is over."""
    if reported is None or reported.mode is DirectiveMode.AUTO or reported.remaining_s == 0:
        return None
    return Override(reported.mode, None if reported.remaining_s is None else now_s + reported.remaining_s)
