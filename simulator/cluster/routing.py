"""Which replica gets a request: an exact one with room (deploy/haproxy/route_rule.py), else by HAProxy's ``balance leastconn``; and
a second try where a replica sends the request on. Pure.

One HAProxy stands in front of all replicas, and its counts are exact at the moment of the choice. An engine is asked for its count
only where a step has ended since the last time: no request ends within a step.
"""

import numpy as np

from controller.messages import Room
from deploy.haproxy.haproxy_config import tries
from deploy.haproxy.route_rule import RoomReport, Server, choose
from simulator.cluster.replica import Replica
from simulator.engine.request import SimRequest

TURN_BITS = 40  # below the count of open requests: which of equals was asked longest ago


class LeastConnections:
    """HAProxy, as far as requests and replicas go.

    Args:
        most_replicas: that there may be; a request is offered the more often.
    """

    def __init__(self, most_replicas: int) -> None:
        self._tries = tries(most_replicas)
        self._turn = 0
        self.replicas: list[Replica] = []
        # By replica: the open requests and the turn in one number, and the time from which on there may be fewer.
        self._ranks = np.zeros(0, np.int64)
        self._sure_until_s = np.zeros(0)
        self._servers: list[Server] = []  # in the order of the replicas, as far as their reports tell
        self._reporting = False  # whether one has said what it can take of prompts

    def add(self, replica: Replica) -> None:
        """A replica takes requests from now on."""
        self.replicas.append(replica)
        self._servers.append(Server(replica.name))
        self._ranks = np.append(self._ranks, np.int64(0))
        self._sure_until_s = np.append(self._sure_until_s, 0.0)

    def remove(self, replica: Replica) -> None:
        """It takes no more; nothing changes where it took none."""
        if replica in self.replicas:
            index = self.replicas.index(replica)
            del self.replicas[index]
            del self._servers[index]
            self._ranks = np.delete(self._ranks, index)
            self._sure_until_s = np.delete(self._sure_until_s, index)

    def report(self, now_s: float, replica: Replica, exact: bool, room: Room | None) -> None:
        """A replica has said what it can take of prompts; None: it says nothing."""
        if replica in self.replicas:
            server = self._servers[self.replicas.index(replica)]
            server.report = (
                None if room is None else RoomReport(exact, room.tokens, room.full_tokens, room.tokens_per_s, now_s)
            )
            self._reporting = any(each.report is not None for each in self._servers)

    def _chosen(self, now_s: float, request: SimRequest) -> int:
        """The replica that the rule of route_rule.py chooses."""
        for server, rank in zip(self._servers, self._ranks.tolist(), strict=True):
            server.open, server.turn = rank >> TURN_BITS, rank & (1 << TURN_BITS) - 1
        wanted = "exact" if request.pinned else None
        chosen = choose(self._servers, wanted, request.prompt_tokens, None, now_s)
        assert chosen is not None, "the caller has looked that there is a replica"
        chosen.sends(now_s, request.prompt_tokens)
        return self._servers.index(chosen)

    def send(self, now_s: float, request: SimRequest) -> bool:
        """Offer a request to the replica that it is for, and then to one after another: those with the fewest open requests.

        Returns:
            Whether a replica took it. There must be one at least.
        """
        for index in np.flatnonzero(self._sure_until_s <= now_s).tolist():
            self._look(index, now_s, int(self._ranks[index]) & (1 << TURN_BITS) - 1)
        asked: int | None = None
        for _ in range(self._tries):
            ranks = self._ranks
            if asked is not None and len(ranks) > 1:
                ranks = ranks.copy()
                ranks[asked] = np.iinfo(np.int64).max
            asked = self._chosen(now_s, request) if asked is None and self._reporting else int(ranks.argmin())
            answer = self.replicas[asked].offer(now_s, request)
            self._turn += 1
            self._look(asked, now_s, self._turn)
            if answer != "elsewhere":
                return answer == "taken"
        return False

    def _look(self, index: int, now_s: float, turn: int) -> None:
        replica = self.replicas[index]
        replica.advance(now_s)
        self._ranks[index] = replica.engine.ongoing << TURN_BITS | turn
        self._sure_until_s[index] = replica.engine.next_change_s
