"""Which replica takes a request: an exact one that can still compute its prompt in time, else the least loaded fast one. Pure.

The rule of route.lua, which HAProxy runs with the constants below; the simulator runs this one. A test compares the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

STALE_S = 1.0  # an older report is none
LAG_S = 0.03  # a request sent so shortly before a report may be missing in it
SPARE = 2  # open requests by which a session's last replica may be ahead of the least loaded one
CONSTANTS = f"{STALE_S} {LAG_S} {SPARE}"  # as route.lua takes them


@dataclass(frozen=True, slots=True)
class RoomReport:
    """What a replica said: its class, the prompt tokens it can take, and how fast that grows back to its full room."""

    exact: bool
    tokens: int
    full: int
    per_s: float
    at_s: float


@dataclass(slots=True)
class Server:
    """A replica, as HAProxy knows it."""

    name: str
    open: int = 0  # requests
    turn: int = 0  # when it was last chosen
    report: RoomReport | None = None
    sent: list[tuple[float, int]] = field(default_factory=list)  # times and tokens of the last requests

    def room(self, now_s: float) -> float | None:
        """Return the prompt tokens that it can take now; None: it has not said so lately."""
        report = self.report
        if report is None or now_s - report.at_s > STALE_S:
            return None
        left = min(report.tokens + report.per_s * (now_s - report.at_s), report.full)
        return left - sum([tokens for at_s, tokens in self.sent if at_s > report.at_s - LAG_S])

    def sends(self, now_s: float, tokens: int) -> None:
        """A request goes to it."""
        self.sent = [each for each in self.sent if each[0] > now_s - STALE_S]
        self.sent.append((now_s, tokens))


def choose(servers: Sequence[Server], wanted: str | None, tokens: int, last: str | None, now_s: float) -> Server | None:
    """Return the server for a request; None: there is none.

    Args:
        servers: those that are up.
        wanted: ``exact``, ``fast``, or anything else: exact where that is in time.
        tokens: of the prompt, an estimate.
        last: the server that had the last request of this session; None: there was none.
        now_s: the clock of the reports.
    """
    exact = [server for server in servers if server.report is not None and server.report.exact]
    fast = [server for server in servers if server.report is None or not server.report.exact]
    if wanted != "fast":
        best: tuple[float, Server] | None = None
        for server in exact:
            room = server.room(now_s)
            if room is None or room < tokens:
                continue
            rank = inf if server.name == last else room
            if best is None or rank > best[0]:
                best = rank, server
        if best is not None:
            return best[1]
    pool = exact if not fast or (wanted == "exact" and exact) else fast
    if not pool:
        return None
    first = min(pool, key=lambda server: (server.open, server.turn))
    for server in pool:
        if server.name == last and server.open <= first.open + SPARE:
            return server
    return first
