"""One streamed HTTP request over a connection of its own, with the time at which every piece of the answer arrived.

The parser is geventhttpclient's (llhttp). Its client is not used: it resolves the address anew for every request in a thread,
does not say when the connection stood, and hands the answer out line by line, which costs a time stamp, a search and a copy for
every line. Here a piece is what one ``recv`` gave; lines are found in them when the answer has ended.
"""

import socket as plain_socket
import time
from collections.abc import Callable

from gevent import socket  # type: ignore[import-untyped]
from geventhttpclient.response import HTTPResponse

BLOCK_BYTES = 65_536
ERROR_BODY_BYTES = 300

Address = tuple[plain_socket.AddressFamily, tuple[str, int]]


class Answering(HTTPResponse):
    """An answer as it comes in."""

    def __init__(self) -> None:
        super().__init__("POST")
        self.pieces: list[tuple[float, bytes]] = []  # (time, body bytes), time by the clock of the caller
        self.at = 0.0

    def _on_body(self, buf: bytes | bytearray) -> None:
        self.pieces.append((self.at, bytes(buf)))

    @property
    def status(self) -> int | None:
        """HTTP status; None before it came."""
        return self.status_code if self.headers_complete else None

    def error_text(self) -> str:
        """The beginning of the body, for a message."""
        return b"".join(piece for _, piece in self.pieces)[:ERROR_BODY_BYTES].decode(errors="replace")


def request_bytes(host: str, path: str, body: bytes, key: str | None = None, session: str | None = None) -> bytes:
    """The request as it goes over the wire; the server closes the connection after the answer."""
    authorization = "" if key is None else f"Authorization: Bearer {key}\r\n"
    of_session = "" if session is None else f"x-nestedfp-session: {session}\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n"
        f"{authorization}{of_session}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def stream(
    address: Address,
    request: bytes,
    answer: Answering,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Send the request and read the answer to its end into ``answer``, which holds what came should this raise.

    Raises:
        OSError: no connection, or it broke.
        HTTPParseError: what came is not HTTP.
    """
    family, target = address
    with socket.socket(family, plain_socket.SOCK_STREAM) as connection:
        connection.setsockopt(plain_socket.IPPROTO_TCP, plain_socket.TCP_NODELAY, 1)
        connection.connect(target)
        connection.sendall(request)
        receive = connection.recv
        while not answer.message_complete:
            data = receive(BLOCK_BYTES)
            answer.at = clock()
            answer.feed(data)  # an empty one tells the parser that the connection has ended
            if not data:
                if not answer.message_complete:
                    raise ConnectionResetError("the connection ended before the answer did")
                return
