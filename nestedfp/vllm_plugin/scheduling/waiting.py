"""The requests of vLLM's scheduler that wait: for their turn, or, blocked, for a grammar to compile."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from vllm.v1.request import Request, RequestStatus

IN_TURN = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class WaitingRequests:
    """What a scheduler knows of those that wait; a class before vLLM's scheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._blocked: dict[str, Request] = {}

    @staticmethod
    def _waits_for_turn(request: Request) -> bool:
        """Whether a request that is not running waits for nothing but its turn."""
        return request.status in IN_TURN

    @property
    def _by_priority(self) -> bool:
        policy: str = self.scheduler_config.policy  # type: ignore[attr-defined]
        return policy == "priority"

    @property
    def _passed_over(self) -> Any:
        """vLLM's queue beside ``waiting``: of those that a step could not take, from 0.31 on of those that hold KV blocks."""
        scheduler: Any = self
        return scheduler.skipped_waiting if hasattr(self, "skipped_waiting") else scheduler.kv_holding_waiting

    def _in_turn(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Yield those that wait for nothing but their turn, in their order."""
        return filter(self._waits_for_turn, requests)

    def _turn_waiting(self) -> Iterator[Request]:
        """Yield all that wait for nothing but their turn."""
        scheduler: Any = self
        return self._in_turn(chain(scheduler.waiting, self._passed_over))

    def _any_waits(self) -> bool:
        """Whether a request waits for nothing but its turn."""
        return any(True for _ in self._turn_waiting())

    def _take_unblocked(self) -> list[Request]:
        """Return those that the step just filled has found to be blocked no longer."""
        found = [request for request in self._blocked.values() if request.status in (*IN_TURN, RequestStatus.RUNNING)]
        for request in found:
            del self._blocked[request.request_id]
        return found
