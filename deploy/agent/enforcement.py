"""Has the engine do what the replica's follower says, over a line to the engine core for directives alone.

The other end of the line is ``nestedfp.vllm_plugin.directives.directive_receiver``.

Directives come in the thread of the standing call and pass the event loop by; the event loop opens the line and sees to leases.
"""

import asyncio
import itertools
import json
import logging
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from controller.messages import Directive, DirectiveAck
from controller.protocol import DirectiveFollower
from deploy.access.admission import Admission
from nestedfp.vllm_plugin.directives.directive_receiver import MESSAGE_BYTES, OPEN

ANSWER_LIMIT_S = 2.0  # the core's thread answers in a millisecond; a process that is stopped answers when it goes on

log = logging.getLogger(__name__)


class DirectiveRefused(RuntimeError):
    """The engine refused a directive; the message says why."""


class DirectiveLine:
    """An open line.

    Args:
        line: connected to the engine core.
        limit_s: how long an answer may take, in seconds.
    """

    def __init__(self, line: socket.socket, limit_s: float = ANSWER_LIMIT_S) -> None:
        line.settimeout(limit_s)
        self._line = line
        self._calls = itertools.count(1)

    @classmethod
    async def open(cls, engine: Callable[..., Awaitable[Any]]) -> "DirectiveLine":
        """Have the engine core connect.

        The socket stands in a folder that only this user can enter, and is gone once both ends have it.

        Args:
            engine: calls a utility of the engine core by name.

        Raises:
            OSError: no socket can be made there.
        """
        with (
            tempfile.TemporaryDirectory(prefix="nestedfp-") as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door,
        ):
            path = str(Path(folder) / "directives")
            door.bind(path)
            door.listen(1)
            await engine(OPEN, path)  # which has connected when it answers
            door.setblocking(False)
            return cls(door.accept()[0])

    def tell(self, directive: dict[str, Any]) -> None:
        """Put a directive in force; returns when it is. Blocks; not for two threads at a time.

        Raises:
            DirectiveRefused: the engine does not take it.
            TimeoutError: it has not answered in time; it may yet take the directive.
            OSError: the line has broken.
        """
        call = next(self._calls)
        self._line.send(json.dumps({"call": call, "directive": directive}).encode())
        while message := self._line.recv(MESSAGE_BYTES):
            answer = json.loads(message)
            if answer["call"] != call:
                continue  # to a call that nobody waited for any longer
            if "error" in answer:
                raise DirectiveRefused(f"the engine refused a directive: {answer['error']}")
            return
        raise ConnectionError("the engine core has closed the line for directives")

    def close(self) -> None:
        """End the line, and with it the thread at its other end."""
        self._line.close()


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
        follower: DirectiveFollower,
        admission: Admission,
        engine: Callable[..., Awaitable[Any]],
        clock: Callable[[], float],
    ) -> None:
        self._follower, self._admission, self._engine, self._clock = follower, admission, engine, clock
        self._line: DirectiveLine | None = None
        self._applied: dict[str, Any] | None = None  # what the engine was told last
        self._opening = asyncio.Lock()
        self._telling = threading.Lock()  # the engine sees directives in order

    def close(self) -> None:
        """Close the line, if there is one."""
        if self._line is not None:
            self._line.close()

    def take(self, directive: dict[str, Any]) -> dict[str, Any]:
        """Take a directive in a thread beside the event loop; return the acknowledgement once the next step runs under it.

        Raises:
            pydantic.ValidationError: for a malformed directive; nothing changes then.
            OSError: the line has broken; ``put_in_force`` opens it anew.
        """
        _, ack = self._follower.on_directive(self._clock(), Directive.model_validate(directive))
        self._tell()
        result: dict[str, Any] = DirectiveAck.model_dump(ack, mode="json")
        return result

    async def put_in_force(self) -> None:
        """Bring the engine in line with the follower, on the event loop: at the start, when a lease ends, when the line broke."""
        async with self._opening:
            if self._wanted() is None:
                return
            if self._line is None:
                self._line = await DirectiveLine.open(self._engine)
            await asyncio.to_thread(self._tell)

    def _tell(self) -> None:
        """Bring the engine in line with the follower, over the line."""
        with self._telling:
            if (wanted := self._wanted()) is None:
                return
            if self._line is None:
                raise ConnectionError(
                    "the line for directives is not open; the event loop opens it within a report's time"
                )
            try:
                self._line.tell(wanted)
            except TimeoutError:
                raise
            except OSError as error:
                log.warning("the line for directives broke and is opened anew: %r", error)
                self._line.close()
                self._line = None
                raise
            self._applied = wanted

    def _wanted(self) -> dict[str, Any] | None:
        """The directive that the engine must be told; None: it knows."""
        force = self._follower.in_force(self._clock())
        self._admission.scale = force.admission_scale
        wanted = {"mode": force.mode.value, "epoch": force.epoch, "rule": asdict(force.rule)}
        return None if wanted == self._applied else wanted
