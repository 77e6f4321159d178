"""The requests that wait for their turn in vLLM's scheduler, whichever of two shapes its queues have.

* ``waiting`` and ``skipped_waiting``: requests that are blocked (by a grammar, a remote KV cache, their client) stand in the second
  alone, beside others that a step passed over. ``_try_promote_blocked_waiting_request`` is asked for blocked ones.
* ``waiting`` and ``kv_holding_waiting`` (from 0.31 on): blocked requests stand in both, and ``_handle_blocked_waiting_request``
  is asked for every request that a step looks at.
"""

from collections.abc import Iterator
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus


class WaitingRequests:
    """What a scheduler knows of those that wait; a class before vLLM's scheduler."""

    def _promoted(self, request: Request) -> None:
        """A request no longer waits for anything but its turn."""
        raise NotImplementedError

    if hasattr(Scheduler, "_try_promote_blocked_waiting_request"):

        def _try_promote_blocked_waiting_request(self, request: Request) -> bool:
            promoted: bool = super()._try_promote_blocked_waiting_request(request)  # type: ignore[misc]
            if promoted:
                self._promoted(request)
            return promoted

    else:

        def _handle_blocked_waiting_request(self, request: Request) -> bool:
            blocked = not self._waits_for_turn(request)
            ready: bool = super()._handle_blocked_waiting_request(request)  # type: ignore[misc]
            if blocked and ready:
                self._promoted(request)
            return ready

    @staticmethod
    def _waits_for_turn(request: Request) -> bool:
        """Whether a request that is not running waits for nothing but its turn: not for a grammar, remote KV or its client."""
        return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)

    @property
    def _by_priority(self) -> bool:
        policy: str = self.scheduler_config.policy  # type: ignore[attr-defined]
        return policy == "priority"

    @property
    def _queues(self) -> tuple[Any, Any]:
        """All that wait, for whatever."""
        scheduler: Any = self
        beside = scheduler.skipped_waiting if hasattr(self, "skipped_waiting") else scheduler.kv_holding_waiting
        return scheduler.waiting, beside

    def _in_turn(self, queue: Any) -> Iterator[Request]:
        """Yield those of a queue that wait for nothing but their turn, in their order."""
        return filter(self._waits_for_turn, queue)

    def _turn_waiting(self) -> list[Request]:
        """Return all that wait for nothing but their turn."""
        return [request for queue in self._queues for request in self._in_turn(queue)]

    def _any_waits(self) -> bool:
        """Whether a request waits for nothing but its turn."""
        return any(True for queue in self._queues for _ in self._in_turn(queue))

    def _waiting_count(self) -> int:
        """Return how many wait for their turn and have not been passed over; for every step, so none is looked at."""
        waiting, beside = self._queues
        deferred = getattr(self, "deferred_waiting", None)
        return len(waiting) if deferred is None else len(waiting) + len(beside) - len(deferred)

    def _first_in_line(self) -> list[Request]:
        """Return the requests that may have waited longest, of those that wait for nothing but their turn."""
        waiting, beside = self._queues
        first = []
        if not self._by_priority:
            for request in self._in_turn(
                waiting
            ):  # preempted ones stand in front and have waited since their preemption only
                first.append(request)
                if request.status is not RequestStatus.PREEMPTED:
                    break
        elif (request := next(self._in_turn(waiting), None)) is not None:
            first.append(request)
        return [*first, *self._in_turn(beside)]
