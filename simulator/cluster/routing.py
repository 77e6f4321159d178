"""Which replica gets a request: HAProxy's ``balance leastconn``, and a second try where a replica sends the request on. Pure.

One HAProxy stands in front of all replicas, and its counts are exact at the moment of the choice. An engine is asked for its count
only where a step has ended since the last time: no request ends within a step.
"""

import numpy as np

from deploy.haproxy.haproxy_config import tries
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

    def add(self, replica: Replica) -> None:
        """A replica takes requests from now on."""
        self.replicas.append(replica)
        self._ranks = np.append(self._ranks, np.int64(0))
        self._sure_until_s = np.append(self._sure_until_s, 0.0)

    def remove(self, replica: Replica) -> None:
        """It takes no more; nothing changes where it took none."""
        if replica in self.replicas:
            index = self.replicas.index(replica)
            del self.replicas[index]
            self._ranks = np.delete(self._ranks, index)
            self._sure_until_s = np.delete(self._sure_until_s, index)

    def send(self, now_s: float, request: SimRequest) -> bool:
        """Offer a request to one replica after another, each time to the one with the fewest open requests but the last asked.

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
            asked = int(ranks.argmin())
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
