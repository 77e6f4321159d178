"""The operator's order: a mode for all replicas, with or without an end. Zero I/O.

It outlives the controller: replicas are told of it with every directive, and tell a new controller, which takes it up until the
operator says something else. Of replicas that differ the one with the highest epoch knows best.
"""

from dataclasses import dataclass

from controller.messages import ReplicaSnapshot, StandingOrder
from nestedfp.modes import DirectiveMode


@dataclass(frozen=True, slots=True)
class Order:
    """The operator's word."""

    mode: DirectiveMode  # fp16 or fp8
    expires_at_s: float | None = None  # None: until handed back


class Override:
    """What the operator has ordered and not taken back."""

    def __init__(self) -> None:
        self.order: Order | None = None
        self._adopted_epoch: int | None = 0  # of the directive whose order was taken up; None: the operator has spoken

    def set(self, now_s: float, mode: DirectiveMode, ttl_s: float | None) -> None:
        """Take an order; ``auto`` hands back to the policy.

        Raises:
            ValueError: for a ``ttl_s`` that is not positive, or one given with ``auto``; nothing changes then.
        """
        if ttl_s is not None and (mode is DirectiveMode.AUTO or not 0 < ttl_s < float("inf")):
            raise ValueError(
                f"expected ttl_s > 0 with mode fp16 or fp8, got ttl_s={ttl_s!r} with mode {mode.value}; "
                "leave ttl_s out to override without end, or to hand back"
            )
        self._adopted_epoch = None
        self.order = None if mode is DirectiveMode.AUTO else Order(mode, None if ttl_s is None else now_s + ttl_s)

    def adopt(self, now_s: float, snapshot: ReplicaSnapshot) -> None:
        """Take up what a replica was told by a controller before this one."""
        reported = snapshot.order
        if self._adopted_epoch is None or snapshot.epoch < self._adopted_epoch:
            return
        newer, self._adopted_epoch = snapshot.epoch > self._adopted_epoch, snapshot.epoch
        if reported is not None and reported.mode is not DirectiveMode.AUTO and reported.remaining_s != 0:
            self.order = Order(reported.mode, None if reported.remaining_s is None else now_s + reported.remaining_s)
        elif newer:
            self.order = None

    def reported(self, now_s: float) -> StandingOrder | None:
        """The order as replicas and the status are told of it."""
        self.expire(now_s)
        if (order := self.order) is None:
            return None
        remaining_s = None if order.expires_at_s is None else order.expires_at_s - now_s
        return StandingOrder(mode=order.mode, remaining_s=remaining_s)

    def expire(self, now_s: float) -> None:
        """Drop what has come to its end."""
        if self.order is not None and self.order.expires_at_s is not None and now_s >= self.order.expires_at_s:
            self.order = None
