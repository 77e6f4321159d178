"""The requests without a first token, and when a step must have ended for them: one part of step_slack.py. Pure.

First come, first served, among those of one priority: a prompt has its first token when all prompt tokens before it and its own
are computed. With ``c`` the prompt tokens that had come until and with it, and ``d`` those done so far, that is
``(c - d) * s_per_token`` from now. ``c * s_per_token - arrived_s`` is a constant of the prompt, so the tightest one of the line
is the front of a queue of maxima.
"""

from collections import deque
from collections.abc import Hashable
from math import inf

SPARE = 64  # entries of requests that have left, before the line of the others is made anew


class _Place:
    """A request's place in line."""

    __slots__ = ("arrived_s", "came", "computed", "gone", "tokens")

    def __init__(self, arrived_s: float, tokens: int, came: int) -> None:
        self.arrived_s = arrived_s
        self.tokens = tokens  # of the prompt
        self.came = came  # prompt tokens of the line until and with it
        self.computed = 0  # of its own
        self.gone = False


class PromptLine:
    """The requests of one priority without a first token, in the order in which they came.

    Args:
        s_per_token: what a prompt token costs in full FP8 steps.
    """

    def __init__(self, s_per_token: float) -> None:
        self._s_per_token = s_per_token
        self._came = 0  # prompt tokens
        self._done = 0  # of them: computed, or of requests that have left the line
        self._places: dict[Hashable, _Place] = {}
        self._by_age: deque[_Place] = deque()
        self._by_need: deque[_Place] = deque()  # falling; whoever comes after a smaller one hides it

    def __len__(self) -> int:
        return len(self._places)

    @property
    def tokens(self) -> int:
        """Prompt tokens still to be computed."""
        return self._came - self._done

    def arrived(self, key: Hashable, arrived_s: float, tokens: int) -> None:
        """A request has come to the end of the line; one that was in it already leaves its place."""
        self.left(key)
        self._came += tokens
        place = self._places[key] = _Place(arrived_s, tokens, self._came)
        self._enqueue(place)
        if len(self._by_age) > 2 * len(self._places) + SPARE:  # one that stays in front keeps those behind it that left
            self._sort()

    def price(self, s_per_token: float) -> None:
        """From now on a prompt token costs so much."""
        self._s_per_token = s_per_token
        self._sort()

    def computed(self, key: Hashable, tokens: int) -> None:
        """So many tokens of its prompt are computed, with the step being filled, or were found in a cache.

        Of requests that are not in line nothing is noted.
        """
        if (place := self._places.get(key)) is not None:
            self._done += tokens - place.computed
            place.computed = tokens

    def left(self, key: Hashable) -> None:
        """It has its first token, or its client has gone. Unknown ones do no harm.

        One that goes out of its turn takes with it the needs that it hid: until their turn only the first one's age counts.
        """
        if (place := self._places.pop(key, None)) is None:
            return
        place.gone = True
        self._done += place.tokens - place.computed
        self._drop()  # here and not where it is asked for: most policies never ask

    def oldest_s(self) -> float | None:
        """When the first in line came that still has a deadline; None: nobody has."""
        return self._by_age[0].arrived_s if self._by_age else None

    def latest_start_s(self, ttft_s: float, ahead: int = 0) -> float:
        """Until when full FP8 steps must begin so that every request in line has its first token within ``ttft_s``.

        Args:
            ttft_s: the deadline, from a request's arrival.
            ahead: prompt tokens that go before the line.

        Returns:
            A time, perhaps one that has passed; infinity where nobody has a deadline.
        """
        if not self._by_need:
            return inf
        return ttft_s - self._need(self._by_need[0]) + (self._done - ahead) * self._s_per_token

    def _need(self, place: _Place) -> float:
        return place.came * self._s_per_token - place.arrived_s

    def _enqueue(self, place: _Place) -> None:
        need = self._need(place)
        while self._by_need and self._need(self._by_need[-1]) <= need:
            self._by_need.pop()
        self._by_need.append(place)
        self._by_age.append(place)

    def _sort(self) -> None:
        self._by_age.clear()
        self._by_need.clear()
        for place in self._places.values():
            self._enqueue(place)

    def _drop(self) -> None:
        for queue in (self._by_age, self._by_need):
            while queue and queue[0].gone:
                queue.popleft()


class PromptLines:
    """The lines of all priorities: those of a lower number go first.

    Args:
        s_per_token: what a prompt token costs in full FP8 steps.
    """

    def __init__(self, s_per_token: float) -> None:
        self._s_per_token = s_per_token
        self._lines: dict[int, PromptLine] = {}  # that have requests, in their order
        self._priorities: dict[Hashable, int] = {}  # of the requests in line

    def __len__(self) -> int:
        return len(self._priorities)

    def arrived(self, key: Hashable, arrived_s: float, tokens: int, priority: int = 0) -> None:
        """A request has come to the end of its line; one that was in line already leaves its place."""
        self.left(key)
        if priority not in self._lines:
            self._lines[priority] = PromptLine(self._s_per_token)
            self._lines = dict(sorted(self._lines.items()))
        self._lines[priority].arrived(key, arrived_s, tokens)
        self._priorities[key] = priority

    def price(self, s_per_token: float) -> None:
        """From now on a prompt token costs so much; the requests stay in line."""
        self._s_per_token = s_per_token
        for line in self._lines.values():
            line.price(s_per_token)

    def computed(self, key: Hashable, tokens: int) -> None:
        """See ``PromptLine``."""
        if (priority := self._priorities.get(key)) is not None:
            self._lines[priority].computed(key, tokens)

    def left(self, key: Hashable) -> None:
        """See ``PromptLine``."""
        if (priority := self._priorities.pop(key, None)) is None:
            return
        self._lines[priority].left(key)
        if not self._lines[priority]:
            del self._lines[priority]

    @property
    def tokens(self) -> int:
        """Prompt tokens still to be computed, of every line."""
        return sum(line.tokens for line in self._lines.values())

    def latest_end_s(self, ttft_s: float) -> float:
        """Until when a step must have ended so that every request in line can have its first token within ``ttft_s``.

        The first of a line may have it with this step, all others with the full FP8 steps that follow.

        Returns:
            A time, perhaps one that has passed; infinity where nobody has a deadline.
        """
        latest_s, ahead = inf, 0
        for line in self._lines.values():
            if (oldest_s := line.oldest_s()) is not None:
                latest_s = min(latest_s, oldest_s + ttft_s, line.latest_start_s(ttft_s, ahead))
            ahead += line.tokens
        return latest_s
