"""The replica's end of the engine core's own line for directives; ``vllm_plugin.directives.directive_receiver`` is the other."""

import itertools
import json
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nestedfp.vllm_plugin.directives.directive_receiver import MESSAGE_BYTES, OPEN

ANSWER_LIMIT_S = 2.0  # the core's thread answers in a millisecond; a process that is stopped answers when it goes on


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
