"""Has the engine do what the replica's follower says: from the event loop, and from the thread of the standing call.

Over the engine core's own line where there is one (directive_sender.py), which needs no event loop; else by a call of the
engine, which does.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, NamedTuple

from controller.messages import Directive, DirectiveAck, StandingOrder
from controller.protocol import DirectiveFollower
from controller.protocol.follower import InForce
from deploy.access.admission import Admission
from deploy.agent.directive_sender import DirectiveLine
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule

log = logging.getLogger(__name__)

SET_DIRECTIVE = "nestedfp_set_directive"


class SharedFollower(DirectiveFollower):
    """A follower that several threads may use."""

    def __init__(self, replica_id: str, mode: DirectiveMode, rule: StepRule) -> None:
        super().__init__(replica_id, mode, rule)
        self._lock = threading.RLock()

    def on_directive(self, now_s: float, directive: Directive) -> tuple[bool, DirectiveAck]:
        with self._lock:
            return super().on_directive(now_s, directive)

    def on_timer(self, now_s: float) -> bool:
        with self._lock:
            return super().on_timer(now_s)

    def in_force(self, now_s: float) -> InForce:
        with self._lock:
            return super().in_force(now_s)

    def lease_remaining_s(self, now_s: float) -> float:
        with self._lock:
            return super().lease_remaining_s(now_s)

    def order(self, now_s: float) -> StandingOrder | None:
        with self._lock:
            return super().order(now_s)

    def order_for_all(self, now_s: float) -> StandingOrder | None:
        with self._lock:
            return super().order_for_all(now_s)


class _Wanted(NamedTuple):
    """What the engine must do."""

    mode: DirectiveMode
    rule: StepRule
    epoch: int

    def content(self) -> dict[str, Any]:
        """As the engine takes it."""
        return {"mode": self.mode.value, "epoch": self.epoch, "rule": asdict(self.rule)}


class Enforcement:
    """Keeps engine and admission in line with the follower.

    Args:
        follower: says what is in force.
        admission: the replica's admission control, whose scale the controller sets.
        engine: calls a utility of the engine core by name; on the event loop.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        follower: SharedFollower,
        admission: Admission,
        engine: Callable[..., Awaitable[Any]],
        clock: Callable[[], float],
    ) -> None:
        self._follower, self._admission, self._engine, self._clock = follower, admission, engine, clock
        self._line: DirectiveLine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._applied: _Wanted | None = None
        # The engine sees directives in order: one at a time on the event loop, and one at a time on the line.
        self._on_loop = asyncio.Lock()
        self._on_line = threading.Lock()

    async def open_line(self) -> None:
        """Have directives go over the engine core's own line from now on.

        Raises:
            OSError: none could be made.
        """
        self._loop = asyncio.get_running_loop()
        async with self._on_loop:
            self._line = await DirectiveLine.open(self._engine)

    def close(self) -> None:
        """Close the line, if there is one."""
        if self._line is not None:
            self._line.close()

    async def apply(self, directive: dict[str, Any]) -> dict[str, Any]:
        """Take a directive on the event loop; return the acknowledgement once the engine runs its next step under it.

        Raises:
            pydantic.ValidationError: for a malformed directive; nothing changes then.
        """
        ack = self._accept(directive)
        await self.put_in_force()
        return ack

    def take(self, directive: dict[str, Any]) -> dict[str, Any]:
        """Do the same in a thread beside the event loop, which need not run for it unless the line has broken."""
        if self._line is None:
            assert self._loop is not None, "the line is opened before a thread takes directives"
            return asyncio.run_coroutine_threadsafe(self.apply(directive), self._loop).result()
        ack = self._accept(directive)
        self._tell()
        return ack

    async def put_in_force(self) -> None:
        """Bring the engine in line with the follower, on the event loop."""
        async with self._on_loop:
            if (wanted := self._wanted()) is None:
                return
            if self._line is not None:
                await asyncio.to_thread(self._tell)
                return
            await self._engine(SET_DIRECTIVE, wanted.content())
            self._applied = wanted

    def _tell(self) -> None:
        """Bring the engine in line with the follower, over the line."""
        with self._on_line:
            if (wanted := self._wanted()) is None:
                return
            if self._line is None:
                raise ConnectionError("the line for directives has broken meanwhile")
            try:
                self._line.tell(wanted.content())
            except TimeoutError:
                raise
            except OSError as error:
                log.warning("the line for directives broke, they go with the requests from now on: %r", error)
                self._line.close()
                self._line = None
                raise
            self._applied = wanted

    def _accept(self, directive: dict[str, Any]) -> dict[str, Any]:
        _, ack = self._follower.on_directive(self._clock(), Directive.model_validate(directive))
        result: dict[str, Any] = DirectiveAck.model_dump(ack, mode="json")
        return result

    def _wanted(self) -> _Wanted | None:
        """What the engine must be told; None: it knows."""
        force = self._follower.in_force(self._clock())
        self._admission.scale = force.admission_scale
        wanted = _Wanted(force.mode, force.rule, force.epoch)
        return None if wanted == self._applied else wanted
