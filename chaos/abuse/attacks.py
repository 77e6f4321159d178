"""What clients do to a service: malformed requests, bodies and heads that are too large, clients that never finish."""

import asyncio
import collections
import contextlib
import itertools
import math
import re
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from chaos.abuse.hostile import HostileRequest

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: chaos\r\nContent-Type: application/json\r\n"
ANSWER_LIMIT_S = 30.0
STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})")


@dataclass(frozen=True, slots=True)
class HostileAnswer:
    """A hostile request and what came of it."""

    case: HostileRequest
    came: int | httpx.HTTPError  # status, or why there is none
    took_s: float
    text: str  # of the answer

    @property
    def hung(self) -> bool:
        """Whether nothing came within the limit."""
        return isinstance(self.came, httpx.TimeoutException)


def send_all(
    url: str, cases: Iterable[HostileRequest], limit_s: float, workers: int = 6, begin_for_s: float = math.inf
) -> list[HostileAnswer]:
    """Send every case, so many at a time. One silent for ``limit_s`` is given up; none is begun after ``begin_for_s``."""
    waiting, done = collections.deque(cases), list[HostileAnswer]()
    last_s = time.monotonic() + begin_for_s

    async def work() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=limit_s, trust_env=False) as own:
            while waiting and time.monotonic() < last_s:
                case = waiting.popleft()
                headers = [(name.encode(), value.encode("latin-1")) for name, value in case.headers]
                began_s = time.monotonic()
                try:
                    try:
                        answer = await own.request(case.method, case.path, headers=headers, content=case.body)
                    except httpx.RemoteProtocolError:  # a connection kept open may end just then; clients try again
                        answer = await own.request(case.method, case.path, headers=headers, content=case.body)
                    done.append(HostileAnswer(case, answer.status_code, time.monotonic() - began_s, answer.text))
                except httpx.HTTPError as error:
                    done.append(HostileAnswer(case, error, time.monotonic() - began_s, ""))

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(workers)))

    asyncio.run(main())
    return done


def summary(done: Sequence[HostileAnswer]) -> str:
    """Say in a line what came of hostile requests, and how soon: one that is served takes what it asks for."""
    classes = collections.defaultdict[str, list[float]](list)
    for sent in done:
        classes[f"{sent.came // 100}xx" if isinstance(sent.came, int) else "no answer"].append(sent.took_s)
    shown = ", ".join(
        f"{len(seconds)} {what} (p99 {sorted(seconds)[len(seconds) * 99 // 100]:.2f} s, slowest {max(seconds):.1f} s)"
        for what, seconds in sorted(classes.items())
    )
    return f"{len(done)} sent: {shown}"


def oversized(max_body_bytes: int) -> dict[str, bytes]:
    """Return requests that are too large for the service, as they go over the wire, by what is too large."""
    too_large = b"x" * (max_body_bytes + 1)
    chunk = b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16))
    chunks = max_body_bytes // (1 << 16) + 2
    return {
        "body": f"{HEAD}Content-Length: {len(too_large)}\r\n\r\n".encode() + too_large,
        "chunked body": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * chunks + b"0\r\n\r\n",
        "head": f"{HEAD}X-Long: {'x' * 20_000}\r\nContent-Length: 2\r\n\r\n{{}}".encode(),
        "head beyond the buffer": f"{HEAD}X-Long: {'x' * 200_000}\r\nContent-Length: 2\r\n\r\n{{}}".encode(),
    }


def send_raw(url: str, request: bytes) -> str:
    """Send these bytes; return the status that came, "closed" without one, or "silent" after the limit."""
    where = urlsplit(url)
    try:
        with socket.create_connection((where.hostname, where.port), ANSWER_LIMIT_S) as connection:
            with contextlib.suppress(ConnectionError):  # it may have answered and closed before it had read all
                connection.sendall(request)
            found = STATUS_LINE.match(connection.recv(4096))
            return found[1].decode() if found else "closed"
    except TimeoutError:
        return "silent"
    except OSError:
        return "closed"


def slow_loris(url: str, connections: int, for_s: float) -> str:
    """Hold connections open with heads and bodies that arrive by a byte a second; return in words what came of them."""
    where = urlsplit(url)
    starts = itertools.cycle((HEAD.encode(), f"{HEAD}Content-Length: 100000\r\n\r\n".encode()))
    began_s = time.monotonic()
    open_ = {}
    for start in itertools.islice(starts, connections):
        each = socket.create_connection((where.hostname, where.port), ANSWER_LIMIT_S)
        each.sendall(start)
        each.setblocking(False)
        open_[each] = b""
    ended = collections.Counter[str]()
    last_s = 0.0
    while open_ and time.monotonic() - began_s < for_s:
        time.sleep(1.0)
        for each in list(open_):
            came = _trickle(each)
            if came is None:
                continue
            ended[came] += 1
            last_s = time.monotonic() - began_s
            each.close()
            del open_[each]
    for each in open_:
        each.close()
    ends = ", ".join(f"{count} {what}" for what, count in ended.most_common()) or "none was ended"
    return (
        f"{connections} slow connections: {ends}, the last after {last_s:.0f} s; {len(open_)} open after {for_s:.0f} s"
    )


def _trickle(connection: socket.socket) -> str | None:
    """Send another byte; return how the server has ended the request, None while it has not."""
    try:
        connection.send(b"x")
        found = STATUS_LINE.match(connection.recv(4096))
        return found[1].decode() if found else "closed"
    except BlockingIOError:
        return None
    except OSError:
        return "closed"
