"""How a directive reaches every replica, and when all have it. Each replica waits in a call of its own, which is answered then."""

import asyncio
import secrets
import time
from typing import Any

from controller.config import RENEW_S
from controller.decide.loop import ControlLoop
from controller.sliding_window import SlidingWindow

BROADCASTS_SPAN_S = 3600.0  # whose times the status summarises


class Delivery:
    """Answers the replicas' calls, on one event loop."""

    def __init__(self, loop: ControlLoop) -> None:
        self._loop = loop
        self._life = secrets.token_hex(8)
        self._told_epoch = 0
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._all_acked = asyncio.Event()  # the newest directive, by every replica
        self._converged_epoch = 0
        self._ack_ms = SlidingWindow(BROADCASTS_SPAN_S)

    @property
    def token(self) -> str:
        """Names the present directive; unlike those of any other controller."""
        return f"{self._life}-{self._loop.epoch}"

    async def next(self, replica_id: str, seen: str | None) -> dict[str, Any] | None:
        """Return the directive as soon as it is another one than the caller has seen, and else after ``RENEW_S``.

        A replica that nothing has been heard of waits for its first snapshot. A newer call of the same replica takes the place of
        an older one, whose answer was lost, and is answered at once.

        Args:
            replica_id: of the caller.
            seen: token of the directive that it saw last; None: of none yet.

        Returns:
            ``{"token": text, "directive": {...}}``; None: ask again.
        """
        older = self._waiting.pop(replica_id, None)
        if older is not None:
            older.set_result(False)
        elif self._loop.directive_for(replica_id) is None or seen == self.token:
            mine = self._waiting[replica_id] = asyncio.get_running_loop().create_future()
            try:
                done, _ = await asyncio.wait({mine}, timeout=RENEW_S)
                if done and not mine.result():
                    return None
            finally:
                if self._waiting.get(replica_id) is mine:
                    del self._waiting[replica_id]
        directive = self._loop.directive_for(replica_id)
        return None if directive is None else {"token": self.token, "directive": directive.model_dump(mode="json")}

    def tell(self, newcomer: str | None = None) -> None:
        """Answer every call that waits if the directive is another one; else that of a replica heard of for the first time."""
        if self._loop.epoch != self._told_epoch:
            self._told_epoch = self._loop.epoch
            for replica_id in list(self._waiting):
                self._waiting.pop(replica_id).set_result(True)
        elif newcomer is not None and newcomer in self._waiting:
            self._waiting.pop(newcomer).set_result(True)
        self._note_converged()

    async def acknowledged(self, limit_s: float) -> None:
        """Wait until every replica has acknowledged the newest directive, but no longer than the limit."""
        try:
            async with asyncio.timeout(limit_s):
                while self._loop.converged_after_s() is None:
                    self._all_acked.clear()
                    await self._all_acked.wait()
        except TimeoutError:
            pass

    def status(self) -> dict[str, Any]:
        """Fields of a ``StatusReport``."""
        return {"broadcasts": self._ack_ms.summary(time.monotonic())}

    def close(self) -> None:
        """Answer every call that waits with nothing."""
        for replica_id in list(self._waiting):
            self._waiting.pop(replica_id).set_result(False)

    def _note_converged(self) -> None:
        """Note how long a directive took to reach every replica, once per epoch."""
        if (after_s := self._loop.converged_after_s()) is None:
            return
        self._all_acked.set()
        if self._converged_epoch != self._loop.epoch:
            self._converged_epoch = self._loop.epoch
            self._ack_ms.add(time.monotonic(), after_s * 1e3)
