"""The engine core's end of a line of its own for directives: a Unix socket and the thread that reads it.

A directive that comes with the requests passes the event loop of the process that writes the answers, and waits there behind
thousands of tokens. On its own line it meets nothing else. The scheduler reads the directive in force when it schedules a step, so
one that has been answered holds for the next step, also where another one is running. The utility ``nestedfp_set_directive`` is
answered between two steps.

Who directs the engine asks for the line by the utility ``nestedfp_open_directive_line``, with the path of a socket on which it
listens; an engine that nobody asks, as that of a plain ``vllm serve``, has none. The line ends with its other end. A message is a
JSON object, one packet (``SOCK_SEQPACKET``):

    {"call": int, "directive": {...}}                   what ``nestedfp_set_directive`` takes
    {"call": int} or {"call": int, "error": text}       the answer
"""

import json
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger("vllm.nestedfp")  # vLLM's handlers, without importing it

OPEN = "nestedfp_open_directive_line"
MESSAGE_BYTES = 1 << 16  # a directive is some hundred
THREAD_NAME = "directives"


def open_line(set_directive: Callable[[dict[str, Any]], Any], path: str) -> None:
    """Connect to a listening socket, and answer what comes from it in a thread until it is closed.

    Args:
        set_directive: called in that thread.
        path: of a Unix socket that only this user can reach.

    Raises:
        OSError: nobody listens there.
    """
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(path)
    except OSError:
        line.close()
        raise
    threading.Thread(target=_answer, args=(line, set_directive), name=THREAD_NAME, daemon=True).start()


def _answer(line: socket.socket, set_directive: Callable[[dict[str, Any]], Any]) -> None:
    with line:
        try:
            while message := line.recv(MESSAGE_BYTES):
                line.send(_taken(message, set_directive))
        except OSError as error:
            log.warning("the line for directives broke: %r", error)


def _taken(message: bytes, set_directive: Callable[[dict[str, Any]], Any]) -> bytes:
    answer: dict[str, Any] = {"call": None}
    try:
        asked = json.loads(message)
        answer["call"] = asked["call"]
        set_directive(asked["directive"])
    except Exception as error:  # whatever it is, the line stays for the next directive
        answer["error"] = repr(error)
    return json.dumps(answer).encode()
