"""Which replica takes a request: an exact one that can still compute its prompt in time, else a fast one that can, else any. Pure.

The rule of route.lua, which HAProxy runs with the constants below; the simulator runs this one. A test compares the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

STALE_S = 1.0  # an older report is none
LAG_S = 0.03  # a request sent so shortly before a report may be missing in it
SPARE = 2  # open requests by which a session's last replica may be ahead of the least loaded one
# A pinned request lengthens all steps of its replica. Where replicas compute more than LOAD_SHARE of what exact steps would, pinned
# requests are packed: on one replica, and one more for each PINNED_SHARE that they take, unless all of these are MOST_BEHIND.
LOAD_SHARE = 0.6  # of what exact steps compute, the mean of the replicas
PINNED_SHARE = 0.45
MOST_BEHIND = 2.0  # times the full room
CONSTANTS = f"{STALE_S} {LAG_S} {SPARE} {LOAD_SHARE} {PINNED_SHARE} {MOST_BEHIND}"  # as route.lua takes them


@dataclass(frozen=True, slots=True)
class RoomReport:
    """What a replica said: its class, the prompt tokens it can take, and how fast that grows back to its full room.

    Its load, of all and of pinned requests, is a share of what exact steps compute.
    """

    exact: bool
    tokens: int
    full: int
    per_s: float
    at_s: float
    load_share: float = 0.0
    pinned_share: float = 0.0


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
        self.sent.append((now_s, tokens if self.report is None else min(tokens, self.report.full)))


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
    if wanted != "fast" and (found := _roomiest(exact, tokens, last, now_s)):
        return found
    if wanted == "exact":
        fast = _for_pinned(fast, now_s)
    pinned = wanted == "exact" and bool(exact)
    pool = exact if pinned or not fast else fast
    if not pool:
        return None
    first = min(pool, key=lambda server: (server.open, server.turn))
    for server in pool:
        room = server.room(now_s)
        if server.name == last and server.open <= first.open + SPARE and (room is None or room > 0):
            return server
    if any(server.room(now_s) is None for server in pool):
        return first  # a replica that says nothing is not left without work
    if pinned:
        return _roomiest(exact, -inf, None, now_s)
    # Where nobody has room, the one that is the least behind: an exact replica computes fast what would be late. But no prompt that
    # it never has room for.
    anybody = fast + [server for server in exact if server.report is not None and server.report.full >= tokens]
    return _roomiest(fast, tokens, last, now_s) or _roomiest(anybody, -inf, None, now_s) or first


def _for_pinned(servers: list[Server], now_s: float) -> list[Server]:
    """Return the servers that take pinned requests now."""
    said = [(each.report, room) for each in servers if each.report and (room := each.room(now_s)) is not None]
    load_share = pinned_share = 0.0
    for report, _ in said:
        load_share, pinned_share = load_share + report.load_share, pinned_share + report.pinned_share
    if len(said) < len(servers) or load_share < LOAD_SHARE * len(servers):
        return servers
    few = 1 + int(pinned_share / PINNED_SHARE)
    are_behind = all(room < -MOST_BEHIND * report.full for report, room in said[:few])
    return servers if are_behind else servers[:few]


def _roomiest(servers: Sequence[Server], tokens: float, last: str | None, now_s: float) -> Server | None:
    """Return the session's last server, or else the one with the most room, of those with room for so many tokens."""
    roomy = [(room, each) for each in servers if (room := each.room(now_s)) is not None and room >= tokens]
    key = lambda one: (one[1].name == last, one[0], -one[1].open, -one[1].turn)  # noqa: E731
    return max(roomy, key=key)[1] if roomy else None
