"""Which replica gets a request: an exact one with room (deploy/haproxy/route_rule.py), else by HAProxy's ``balance leastconn``; and
a second try where a replica sends the request on. Pure.

One HAProxy stands in front of all replicas, and its counts are exact at the moment of the choice.
"""

from controller.messages import Room
from deploy.haproxy.haproxy_config import tries
from deploy.haproxy.route_rule import RoomReport, Server, choose
from simulator.cluster.replica import Replica
from simulator.engine.request import SimRequest


class LeastConnections:
    """HAProxy, as far as requests and replicas go; the more replicas there may be, the more often a request is offered."""

    def __init__(self, most_replicas: int) -> None:
        self._tries = tries(most_replicas)
        self._turn = 0
        self._servers: dict[Replica, Server] = {}

    def add(self, replica: Replica) -> None:
        """A replica takes requests from now on."""
        self._servers[replica] = Server(replica.name)

    def remove(self, replica: Replica) -> None:
        """It takes no more; nothing changes where it took none."""
        self._servers.pop(replica, None)

    def report(self, now_s: float, replica: Replica, exact: bool, room: Room | None) -> None:
        """A replica has said what it can take of prompts; None: it says nothing."""
        if (server := self._servers.get(replica)) is None:
            return
        server.report = None
        if room is not None:
            tokens = room.tokens, room.full_tokens, room.tokens_per_s
            server.report = RoomReport(exact, *tokens, now_s, room.load_share, room.pinned_share)

    def send(self, now_s: float, request: SimRequest) -> bool:
        """Offer a request to the replica that it is for, and then to one after another: those with the fewest open requests.

        Returns whether a replica took it. There must be one at least.
        """
        for replica, server in self._servers.items():
            replica.advance(now_s)
            server.open = replica.engine.ongoing
        wanted = "exact" if request.pinned else None
        first = choose([*self._servers.values()], wanted, request.prompt_tokens, None, now_s)
        assert first is not None, "there is a replica"
        first.sends(now_s, request.prompt_tokens)
        asked = next(replica for replica, server in self._servers.items() if server is first)
        for _ in range(self._tries):
            answer = asked.offer(now_s, request)
            self._turn += 1
            self._servers[asked].turn, self._servers[asked].open = self._turn, asked.engine.ongoing
            if answer != "elsewhere":
                return answer == "taken"
            others = [replica for replica in self._servers if replica is not asked] or [asked]
            asked = min(others, key=lambda replica: (self._servers[replica].open, self._servers[replica].turn))
        return False
