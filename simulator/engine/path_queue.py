"""The processes between client and engine as one queue in front of one core: requests go in, streamed tokens come out. Pure.

Every token written and every request taken in costs processor time of one event loop, first come, first served. What has
come and is not done is the backlog: a request reaches the engine, and a token its client, that much later. Tokens of many
steps are taken as a flow, so that a stretch of decode steps costs one addition.

Not modelled: that a lagging front end merges tokens, which bounds the backlog; so beyond saturation it is worse here.
"""

from collections import deque
from math import inf
from typing import Annotated

from pydantic import Field

from controller.messages import PathStats
from controller.sliding_window import SlidingWindow
from simulator.engine.cost_table import EngineTable
from simulator.engine.engine import Engine
from simulator.engine.request import SimRequest
from workload.frozen import FrozenModel

NotNegative = Annotated[float, Field(ge=0)]


class PathCost(FrozenModel):
    """Processor time of the front end. The defaults: one replica's HTTP server and HAProxy, 256 streams, answers of 128 tokens.

    What a request costs is contained in the cost of its tokens, as it was measured.
    """

    per_token_us: NotNegative = 34.0 + 8.0  # server, proxy
    per_request_us: NotNegative = 0.0


class HttpPath:
    """The path of one replica. Times must not fall."""

    def __init__(self, cost: PathCost) -> None:
        self._token_s = cost.per_token_us * 1e-6
        self._request_s = cost.per_request_us * 1e-6
        self._backlog_s = 0.0
        self._at_s = 0.0
        self._waits = SlidingWindow()
        self._deliveries = SlidingWindow()

    def backlog_s(self, now_s: float) -> float:
        """Seconds of work that stand before what comes now."""
        return max(0.0, self._backlog_s - max(0.0, now_s - self._at_s))

    def take_in(self, now_s: float) -> float:
        """A request arrives; returns the seconds until the engine has it."""
        wait_s = self._work(now_s, self._request_s)
        self._waits.add(now_s, wait_s * 1e3)
        return wait_s

    def write(self, began_s: float, ended_s: float, tokens: int) -> float:
        """The engine has made ``tokens`` between two moments; returns by how many seconds the backlog has grown since."""
        began_s = max(began_s, self._at_s)  # a request may have come in between: until then the time has been counted
        before_s = self.backlog_s(began_s)
        # As a flow: what comes while the loop is busy adds up, what it does meanwhile goes.
        self._backlog_s = max(0.0, before_s + tokens * self._token_s - max(0.0, ended_s - began_s))
        self._at_s = max(self._at_s, ended_s)
        self._deliveries.add(ended_s, self._backlog_s * 1e3, tokens)
        return self._backlog_s - before_s

    def stats(self, now_s: float, in_path: int, streams: int) -> PathStats:
        """What the replica's snapshot says of it."""
        return PathStats(
            in_path=in_path,
            wait_p90_ms=self._waits.summary(now_s).p90_ms,
            delivery_p90_ms=self._deliveries.summary(now_s).p90_ms,
            loop_lag_ms=self.backlog_s(now_s) * 1e3,
            open_streams=streams,
        )

    def _work(self, now_s: float, cost_s: float) -> float:
        self._backlog_s = self.backlog_s(now_s) + cost_s
        self._at_s = max(self._at_s, now_s)
        return self._backlog_s


class ServedEngine(Engine):
    """An engine behind such a path; requests' latencies are those that their clients see."""

    def __init__(self, table: EngineTable, cost: PathCost) -> None:
        super().__init__(table)
        self._path = HttpPath(cost)
        self._on_their_way: deque[tuple[float, SimRequest]] = deque()  # with the times at which the engine has them

    def add(self, now_s: float, request: SimRequest) -> None:
        self._on_their_way.append((now_s + self._path.take_in(now_s), request))

    def advance(self, until_s: float) -> None:
        while self._on_their_way and self._on_their_way[0][0] <= until_s:
            at_s, request = self._on_their_way.popleft()
            super().advance(at_s)
            super().add(at_s, request)
        super().advance(until_s)

    def unfinished(self) -> list[SimRequest]:
        return [*super().unfinished(), *(request for _, request in self._on_their_way)]

    @property
    def ongoing(self) -> int:
        return super().ongoing + len(self._on_their_way)

    @property
    def next_change_s(self) -> float:
        return min(self.ends_s, self._on_their_way[0][0] if self._on_their_way else inf)

    @property
    def busy(self) -> bool:
        return self.ends_s < inf or bool(self._on_their_way)

    def stop(self) -> None:
        super().stop()
        self._on_their_way.clear()

    def written(self, began_s: float, ended_s: float, tokens: int) -> float:
        return self._path.write(began_s, ended_s, tokens)

    def delay_s(self, now_s: float) -> float:
        return self._path.backlog_s(now_s)

    def path_stats(self, now_s: float) -> PathStats:
        """What the replica's snapshot says of the path."""
        return self._path.stats(now_s, len(self._on_their_way), self.ongoing)
